package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// node is a Store over one Redis server, or over what stands for the master of the day. All charges
// of a Take go in one script call.
type node struct {
	client *goredis.Client
	keys   keys
	// elsewhere, in a cluster, runs a command that this node said belongs to another.
	elsewhere func(ctx context.Context, cmd goredis.Cmder) error
	now       func() algorithms.Micros // nil: the server's clock
	wall      func() algorithms.Micros // about what the server's clock shows
	replicas  replicas
	plain     atomic.Bool // the server does not know a shebang
	flights   sync.Pool
}

func newNode(client *goredis.Client, keys keys, now func() algorithms.Micros) *node {
	return &node{
		client: client, keys: keys, now: now,
		wall:    func() algorithms.Micros { return algorithms.Micros(time.Now().UnixMicro()) },
		flights: sync.Pool{New: func() any { return &flight{} }},
	}
}

// patient is n for those who have so much time.
func (n *node) patient(timeout time.Duration) *node {
	p := newNode(n.client.WithTimeout(timeout), n.keys, n.now)
	p.elsewhere, p.wall, p.replicas = n.elsewhere, n.wall, n.replicas
	p.plain.Store(n.plain.Load())
	return p
}

// flight is the trips of one Take.
type flight struct {
	trips []*trip
	used  int
	cmds  []once
	name  []byte
}

// trip returns room for one more trip, of so many charges at the most.
func (f *flight) trip(slot, most int) *trip {
	if f.used == len(f.trips) {
		f.trips = append(f.trips, &trip{})
	}
	t := f.trips[f.used]
	f.used++
	t.reset(most)
	t.slot = slot
	return t
}

// Take implements backend.Taker. The outcome of a call that got no answer is not known, so it is
// never sent again; a script that the server did not know, or could not run there, was not run, so
// it is.
func (n *node) Take(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
	f := n.flights.Get().(*flight)
	defer n.flights.Put(f)
	trips := n.plan(f, charges, false)
	n.run(ctx, f, trips)
	if trips[0].slots && (isElsewhere(trips[0].err) || isForeign(trips[0].err)) {
		// A slot has moved away: each goes on its own, so that it finds its way alone.
		trips = n.plan(f, charges, true)
		n.run(ctx, f, trips)
	}
	for _, t := range trips {
		t.answer(charges, decisions)
	}
}

// plan fills f with the trips that charges need: one, or one for each slot. Groups stay whole: they
// are of one slot.
func (n *node) plan(f *flight, charges []backend.Charge, bySlot bool) []*trip {
	f.used = 0
	for i := range charges {
		f.name = n.keys.append(f.name[:0], &charges[i])
		slot := 0
		if n.elsewhere != nil { // only a cluster has several
			slot = n.keys.slot(&charges[i], f.name)
		}
		var t *trip
		for _, have := range f.trips[:f.used] {
			if have.slot == slot || !bySlot {
				t = have
				break
			}
		}
		if t == nil {
			t = f.trip(slot, len(charges))
		}
		t.slots = t.slots || t.slot != slot
		if starts := i == 0 || charges[i].Group != charges[i-1].Group; starts && charges[i].Once != nil {
			group := charges[i:][:backend.GroupLen(charges[i:])]
			t.head(group, []byte(n.keys.record(&charges[i], slot, n.elsewhere != nil)))
		}
		t.add(&charges[i], f.name, i)
	}
	now := algorithms.Micros(0)
	if n.now != nil {
		now = n.now()
	}
	for _, t := range f.trips[:f.used] {
		t.finish(now, n.wall)
	}
	return f.trips[:f.used]
}

// run sends trips, again in full where the server has not got the script, without the shebang where
// it does not know one, and with other windows of a calendar where its clock shows none of those given.
func (n *node) run(ctx context.Context, f *flight, trips []*trip) {
	old := n.plain.Load()
	n.send(ctx, f, trips, old, false)
	if again := failed(trips, func(t *trip) bool { return isReply(t.err, "NOSCRIPT") }); len(again) > 0 {
		n.send(ctx, f, again, old, true)
	}
	if !old {
		if again := failed(trips, func(t *trip) bool { return isCompileError(t.err) }); len(again) > 0 {
			n.plain.Store(true)
			old = true
			n.send(ctx, f, again, old, true)
		}
	}
	if again := failed(trips, func(t *trip) bool { _, yes := t.elsewhen(); return yes }); len(again) > 0 {
		for _, t := range again {
			now, _ := t.elsewhen()
			t.near(now)
		}
		n.send(ctx, f, again, old, false)
	}
}

// send sends trips, in full or by the script's name, for an old server or not.
func (n *node) send(ctx context.Context, f *flight, trips []*trip, old, full bool) {
	f.cmds = f.cmds[:0]
	for _, t := range trips {
		f.cmds = append(f.cmds, once{goredis.NewCmd(ctx, t.by(t.form(old), full)...)})
	}
	if len(trips) == 1 && n.replicas.count == 0 {
		_ = n.client.Process(ctx, f.cmds[0]) // its error is the command's
	} else {
		pipe := n.client.Pipeline()
		for _, cmd := range f.cmds {
			_ = pipe.Process(ctx, cmd)
		}
		unconfirmed := n.replicas.confirm(ctx, pipe)
		_, _ = pipe.Exec(ctx) // each error is its command's
		defer func() {
			for _, t := range trips {
				t.err = cmp.Or(t.err, unconfirmed())
			}
		}()
	}
	for i, t := range trips {
		cmd := f.cmds[i]
		if n.elsewhere != nil && !t.slots && isElsewhere(cmd.Err()) { // it was not run here
			cmd = once{goredis.NewCmd(ctx, t.by(t.form(old), true)...)}
			_ = n.elsewhere(ctx, cmd)
			if cmd.Err() == nil && n.replicas.count > 0 {
				cmd.SetErr(errors.New("charged at another master, whose replicas were not asked"))
			}
		}
		t.reply, t.err = cmd.Text()
	}
}

// replicas are how many must confirm what was written before it counts, and for how long they may
// take.
type replicas struct {
	count int
	wait  time.Duration
}

// confirm adds the question to pipe; what it returns is, once pipe has been sent, why what was
// written does not count.
func (r replicas) confirm(ctx context.Context, pipe goredis.Pipeliner) (unconfirmed func() error) {
	if r.count == 0 {
		return func() error { return nil }
	}
	cmd := once{goredis.NewCmd(ctx, "wait", r.count, max(1, r.wait.Milliseconds()))}
	_ = pipe.Process(ctx, cmd)
	return func() error {
		if n, err := cmd.Int(); err != nil || n < r.count {
			return cmp.Or(err, fmt.Errorf("%d of %d replicas have confirmed it in time", n, r.count))
		}
		return nil
	}
}

// failed returns those of trips that did so.
func failed(trips []*trip, so func(*trip) bool) []*trip {
	if !slices.ContainsFunc(trips, so) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(trips), func(t *trip) bool { return !so(t) })
}

// once is a command that is never sent again when its answer is lost: it may have been charged.
type once struct{ *goredis.Cmd }

// NoRetry tells go-redis so.
func (once) NoRetry() bool { return true }

// isReply tells whether err is the server's own reply with one of codes, so that the command is
// known not to have run.
func isReply(err error, codes ...string) bool {
	var reply goredis.Error
	if !errors.As(err, &reply) {
		return false
	}
	return slices.ContainsFunc(codes, func(code string) bool { return strings.HasPrefix(reply.Error(), code) })
}

func isElsewhere(err error) bool { return isReply(err, "MOVED ", "ASK ", "TRYAGAIN ") }

// isForeign tells that a script met a key of another node; it had written nothing by then.
func isForeign(err error) bool {
	return isReply(err, "ERR") && strings.Contains(err.Error(), "non local key")
}

func isCompileError(err error) bool {
	return isReply(err, "ERR") && strings.Contains(err.Error(), "compiling script")
}

// unavailable says that the store could not decide.
func unavailable(err error) error {
	switch {
	case errors.Is(err, backend.ErrUnavailable):
		return err
	case neverRan(err):
		return fmt.Errorf("%w: %w", backend.ErrNotTaken, err)
	default:
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
}

// refusals are the error codes of a server that refuses a command, or a script before its first write.
var refusals = []string{
	"ASK ", "BUSY ", "CLUSTERDOWN ", "LOADING ", "MASTERDOWN ", "MISCONF ", "MOVED ", "NOAUTH ", "NOPERM ", "NOREPLICAS ",
	"NOSCRIPT ", "OOM ", "READONLY ", "TRYAGAIN ", "WRONGPASS ", "ERR max number of clients",
}

// neverRan reports whether err says that a call did nothing: there was no connection, or the server
// refused it.
func neverRan(err error) bool {
	dial, ok := errors.AsType[*net.OpError](err)
	return ok && dial.Op == "dial" || errors.Is(err, goredis.ErrPoolTimeout) || isReply(err, refusals...)
}
