package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/outside"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// node makes the calls to one Redis server, or to the current master. Usually one run of the script decides all
// charges of a call.
type node struct {
	client *goredis.Client
	keys   keys
	// redirect is set in a cluster. After this node has replied that it does not serve the slot of a command,
	// redirect sends the command to the node that does.
	redirect func(ctx context.Context, cmd goredis.Cmder) error
	now      func() algorithms.Micros // nil means the server's clock
	wall     func() algorithms.Micros // the time of this machine, which approximates the time of the server's clock
	clock    outside.Clock
	replicas replicas
	plain    atomic.Bool // the server does not know scripts with a shebang
	loaded   atomic.Bool // used with replicas: the server had the script at the last call
}

func newNode(client *goredis.Client, keys keys, now func() algorithms.Micros) *node {
	return &node{
		client: client, keys: keys, now: now, clock: outside.System,
		wall: func() algorithms.Micros { return algorithms.Micros(time.Now().UnixMicro()) },
	}
}

func (n *node) withTimeout(timeout time.Duration) *node {
	p := newNode(withTimeout(n.client, timeout), n.keys, n.now)
	p.redirect, p.wall, p.clock, p.replicas = n.redirect, n.wall, n.clock, n.replicas
	p.plain.Store(n.plain.Load())
	return p
}

// payload is the content of a call: one or several runs of the script, and resets.
type payload struct {
	scriptRuns []*scriptRun
	used       int
	resets     []reset
	cmds       []once
	name       []byte
}

type reset struct {
	name     string
	decision *backend.Decision
}

// scriptRun returns a run of the script for slot. most is the largest number of charges that it may get.
func (f *payload) scriptRun(slot, most int) *scriptRun {
	if f.used == len(f.scriptRuns) {
		f.scriptRuns = append(f.scriptRuns, &scriptRun{})
	}
	t := f.scriptRuns[f.used]
	f.used++
	t.reset(most)
	t.slot = slot
	return t
}

func (n *node) Take(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
	c := &call{charges: len(charges), runs: []run{{&backend.Batch{Charges: charges, Decisions: decisions}, 0, len(charges)}}}
	_ = n.decide(ctx, c) // the decisions contain the error
}

// decide makes the call c. An error means that a part of it failed.
//
// If a call got no answer, its outcome is unknown, so it is never sent again. If the server did not know the
// script, or could not run it, no charge was made, so the call is sent again. The same applies if the script failed at
// the value of a bucket. Then the halves of the call are sent, so that only the groups of that bucket fail.
func (n *node) decide(ctx context.Context, c *call) (failed error) {
	f := &c.payload
	f.resets = f.resets[:0]
	scriptRuns := n.plan(c, false)
	if len(f.resets) > 0 {
		failed = n.reset(ctx, f.resets)
	}
	if len(scriptRuns) == 0 {
		return failed
	}
	n.run(ctx, f, scriptRuns, c.permit == doProbe)
	if scriptRuns[0].slots && (isRedirect(scriptRuns[0].err) || isForeign(scriptRuns[0].err)) {
		// After a slot has moved, each run is sent alone, so that go-redis can redirect it.
		scriptRuns = n.plan(c, true)
		n.run(ctx, f, scriptRuns, false)
	}
	if len(scriptRuns) == 1 && isSpoiled(scriptRuns[0].err) {
		if first, rest := c.halves(); len(rest.runs) > 0 {
			return cmp.Or(failed, n.decide(ctx, first), n.decide(ctx, rest))
		}
	}
	for _, t := range scriptRuns {
		if err := t.answer(); !isSpoiled(t.err) {
			failed = cmp.Or(failed, err)
		}
	}
	return failed
}

// plan fills c.payload with the runs of the script that the charges of c need: one for all, or, with bySlot, one
// for each slot. Resets need no run of the script. A group is never divided, because all its buckets are in one
// slot.
func (n *node) plan(c *call, bySlot bool) []*scriptRun {
	f, group := &c.payload, 0
	f.used = 0
	for _, r := range c.runs {
		charges, decisions := r.batch.Charges[:r.to], r.batch.Decisions[:r.to]
		for i := r.from; i < r.to; i++ {
			charge := &charges[i]
			f.name = n.keys.append(f.name[:0], charge)
			if charge.Reset {
				if !bySlot { // with bySlot, the resets have been sent before
					f.resets = append(f.resets, reset{string(f.name), &decisions[i]})
				}
				continue
			}
			slot := 0
			if n.redirect != nil && (bySlot || charge.IdempotencyKey != nil) { // only a cluster has several slots
				slot = n.keys.slot(charge, f.name)
			}
			t := f.find(slot, bySlot, c.charges)
			t.slots = t.slots || n.redirect != nil && !bySlot && t.mayDiffer(charge, f.name)
			end := len(f.name) // the name of the record, if there is one, follows in the same buffer
			if i == r.from || charge.Group != charges[i-1].Group {
				group++
				if charge.IdempotencyKey != nil {
					f.name = n.keys.appendRecord(f.name, charge, slot, n.redirect != nil)
					t.head(charge.IdempotencyKey, backend.GroupLen(charges[i:]), f.name[end:])
				}
			}
			t.add(charge, &decisions[i], f.name[:end], group)
		}
	}
	now := algorithms.Micros(0)
	if n.now != nil {
		now = n.now()
	}
	for _, t := range f.scriptRuns[:f.used] {
		t.finish(now, n.wall)
	}
	return f.scriptRuns[:f.used]
}

// find returns the run of the script for a slot. If bySlot is false, one run serves all slots. most is the largest number
// of charges that the run may get.
func (f *payload) find(slot int, bySlot bool, most int) *scriptRun {
	for _, have := range f.scriptRuns[:f.used] {
		if have.slot == slot || !bySlot {
			return have
		}
	}
	return f.scriptRun(slot, most)
}

// reset deletes buckets. An error means that one of them could not be deleted.
func (n *node) reset(ctx context.Context, resets []reset) (failed error) {
	pipe := n.client.Pipeline()
	for _, r := range resets { // one DEL for each key, because in a Cluster they are in different slots
		pipe.Del(ctx, r.name)
	}
	cmds, _ := pipe.Exec(ctx) // each command has its own error
	for i, r := range resets {
		err := cmds[i].Err()
		if n.redirect != nil && isRedirect(err) {
			cmd := goredis.NewCmd(ctx, "del", r.name)
			err = n.redirect(ctx, cmd)
		}
		if err != nil {
			err = unavailable(err)
			failed = err
		}
		*r.decision = backend.Decision{Decision: algorithms.Decision{Allowed: err == nil}, Err: err}
	}
	return failed
}

// run sends runs of the script. restarted means that the server may have lost the script, so that run sends
// its whole text. run sends the runs again in three cases:
//
//   - The server lacks the script: run sends the whole text.
//   - The server does not know shebangs: run sends the text without one.
//   - The server's time is outside of the calendar windows that were sent: run sends other windows.
func (n *node) run(ctx context.Context, f *payload, scriptRuns []*scriptRun, restarted bool) {
	old := n.plain.Load()
	// If the server lacks the script, nothing is written. WAIT waits for the replicas nevertheless, which may
	// take most of the time of the call. So the first call has the whole text.
	full := restarted || n.replicas.count > 0 && !n.loaded.Load()
	unconfirmed := n.send(ctx, f, scriptRuns, old, full)
	if again := failed(scriptRuns, func(t *scriptRun) bool { return isReply(t.err, "NOSCRIPT") }); len(again) > 0 {
		n.loaded.Store(false)
		if unconfirmed != nil { // WAIT has used up most of the time
			for _, t := range again {
				t.err = fmt.Errorf("%w: %w", unconfirmed, t.err)
			}
			return
		}
		n.send(ctx, f, again, old, true)
	} else if full && !slices.ContainsFunc(scriptRuns, func(t *scriptRun) bool { return t.reply == "" }) {
		n.loaded.Store(true)
	}
	if !old {
		if again := failed(scriptRuns, func(t *scriptRun) bool { return isCompileError(t.err) }); len(again) > 0 {
			n.plain.Store(true)
			old = true
			n.send(ctx, f, again, old, true)
		}
	}
	if again := failed(scriptRuns, func(t *scriptRun) bool { _, yes := t.outsideCalendar(); return yes }); len(again) > 0 {
		for _, t := range again {
			now, _ := t.outsideCalendar()
			t.writeLimits(now)
		}
		n.send(ctx, f, again, old, false)
	}
}

// send sends runs of the script. old means that the server does not know shebangs. full means that the whole
// text of the script is sent, not only its hash. The result is the reason why replicas have not confirmed the
// writes, or nil.
func (n *node) send(ctx context.Context, f *payload, scriptRuns []*scriptRun, old, full bool) (unconfirmed error) {
	f.cmds = f.cmds[:0]
	for _, t := range scriptRuns {
		f.cmds = append(f.cmds, once{goredis.NewCmd(ctx, t.arguments(t.form(old), full)...)})
	}
	if len(scriptRuns) == 1 && n.replicas.count == 0 {
		_ = n.client.Process(ctx, f.cmds[0]) // the command has the error
	} else {
		pipe := n.client.Pipeline()
		for _, cmd := range f.cmds {
			_ = pipe.Process(ctx, cmd)
		}
		n.replicas.touch(ctx, pipe, scriptRuns)
		confirmed := n.replicas.confirm(ctx, pipe, n.clock)
		_, _ = pipe.Exec(ctx) // each command has its own error
		unconfirmed = confirmed()
	}
	for i, t := range scriptRuns {
		cmd := f.cmds[i]
		if n.redirect != nil && !t.slots && isRedirect(cmd.Err()) { // this node did not run it
			cmd = once{goredis.NewCmd(ctx, t.arguments(t.form(old), true)...)}
			_ = n.redirect(ctx, cmd)
			if cmd.Err() == nil && n.replicas.count > 0 {
				cmd.SetErr(errors.New("charged at another master, whose replicas did not confirm"))
			}
		}
		t.reply, t.err = cmd.Text()
		t.err = cmp.Or(t.err, unconfirmed)
	}
	return unconfirmed
}

// replicas has the number of replicas that must confirm writes, and how long a call waits for them. The wait is
// three quarters of the timeout of a call, so that the server's answer arrives before the call ends. If a
// call ended without an answer, its connection would have to be closed.
type replicas struct {
	count int
	wait  time.Duration
}

// touch adds to pipe a write of each record of an idempotency key. Since Redis 7.2, WAIT waits only for the
// writes of its own connection. If the script only reads an answer from a record, it writes nothing. WAIT
// would then also count replicas that have neither the record nor the charge.
func (r replicas) touch(ctx context.Context, pipe goredis.Pipeliner, scriptRuns []*scriptRun) {
	if r.count == 0 {
		return
	}
	for _, t := range scriptRuns {
		for _, is := range t.records {
			_ = pipe.Process(ctx, once{goredis.NewCmd(ctx, "pexpire", strings.Clone(t.keys[is.key-1]), is.life)})
		}
	}
}

// confirm adds WAIT to pipe. Call the returned function after pipe was sent. It returns the reason why
// replicas have not confirmed the writes, or nil.
func (r replicas) confirm(ctx context.Context, pipe goredis.Pipeliner, clock outside.Clock) (unconfirmed func() error) {
	if r.count == 0 {
		return func() error { return nil }
	}
	wait := r.wait
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, outside.Until(clock, end)*3/4)
	}
	cmd := once{goredis.NewCmd(ctx, "wait", r.count, max(1, wait.Milliseconds()))}
	_ = pipe.Process(ctx, cmd)
	return func() error {
		if n, err := cmd.Int(); err != nil || n < r.count {
			return cmp.Or(err, fmt.Errorf("%d of %d replicas have confirmed it in time", n, r.count))
		}
		return nil
	}
}

func failed(scriptRuns []*scriptRun, hasFailed func(*scriptRun) bool) []*scriptRun {
	if !slices.ContainsFunc(scriptRuns, hasFailed) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(scriptRuns), func(t *scriptRun) bool { return !hasFailed(t) })
}

// once is a command that go-redis must not send again when the answer is lost, because its charges may have
// been consumed.
type once struct{ *goredis.Cmd }

func (once) NoRetry() bool { return true }

// isReply reports whether err is an error reply of the server that starts with one of codes.
func isReply(err error, codes ...string) bool {
	if err == nil {
		return false
	}
	var reply goredis.Error
	if !errors.As(err, &reply) {
		return false
	}
	return slices.ContainsFunc(codes, func(code string) bool { return strings.HasPrefix(reply.Error(), code) })
}

func isRedirect(err error) bool { return isReply(err, "MOVED ", "ASK ", "TRYAGAIN ") }

// isForeign reports whether the script tried to read a key that another node serves. The script has then
// written nothing.
func isForeign(err error) bool {
	return isReply(err, "ERR") && strings.Contains(err.Error(), "non local key")
}

func isCompileError(err error) bool {
	return isReply(err, "ERR") && strings.Contains(err.Error(), "compiling script")
}

// isSpoiled reports whether the script has failed while it read the buckets, because another program has written a value
// that is not a bucket. The script has then written nothing. The server works, so the error is no failure of the server.
func isSpoiled(err error) bool {
	return isReply(err, "WRONGTYPE ") || isReply(err, "ERR") && strings.Contains(err.Error(), "user_script:") && !isCompileError(err) && !isForbidden(err)
}

// unavailable wraps err as backend.ErrUnavailable. If the call certainly had no effect, the result is also a
// backend.ErrNotTaken.
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

// refusals has the error codes with which a server refuses a command, or a script before its first write.
var refusals = []string{
	"ASK ", "BUSY ", "CLUSTERDOWN ", "LOADING ", "MASTERDOWN ", "MISCONF ", "MOVED ", "NOAUTH ", "NOPERM ", "NOREPLICAS ",
	"NOSCRIPT ", "OOM ", "READONLY ", "TRYAGAIN ", "WRONGPASS ", "ERR max number of clients",
}

// neverRan reports whether err means that a call had no effect: there was no connection, or the server
// refused it.
func neverRan(err error) bool {
	dial, ok := errors.AsType[*net.OpError](err)
	return ok && dial.Op == "dial" || errors.Is(err, goredis.ErrPoolTimeout) || isReply(err, refusals...)
}
