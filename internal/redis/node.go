package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/clock"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// node makes the calls to one Redis server, or to the current master. Usually one run of the script decides all
// charges of a call.
//
// If a command got no reply, its outcome is unknown, so it is never sent again. It is sent again if it certainly had no
// effect: the server did not know the script or could not run it, does not serve the slot, or the script failed at the
// value of a bucket.
type node struct {
	wire transport
	keys keys
	// at returns the node at an address, to which a server of a Cluster has redirected a command. It is nil if the server
	// belongs to no Cluster.
	at       func(addr string) *node
	now      func() algorithms.Micros // nil means the server's clock
	wall     func() algorithms.Micros // the time of this machine, which approximates the time of the server's clock
	clock    clock.Clock
	replicas replicas
	plain    atomic.Bool // the server does not know scripts with a shebang
	loaded   atomic.Bool // used with replicas: the server had the script at the last call
	panicked func(value any)
}

func newNode(wire transport, keys keys, now func() algorithms.Micros) *node {
	return &node{
		wire: wire, keys: keys, now: now, clock: clock.System, panicked: func(any) {},
		wall: func() algorithms.Micros { return algorithms.Micros(time.Now().UnixMicro()) },
	}
}

// replicas has the number of replicas that must confirm writes, and how long a call waits for them. The wait is
// three quarters of the timeout of a call, so that the server's answer arrives before the call ends.
type replicas struct {
	count int
	wait  time.Duration
}

// payload is the content of a call: its commands, and the exchange that sends them.
type payload struct {
	scriptRuns []*scriptRun
	used       int
	steps      []step // the commands that have no final reply yet
	again      []step
	sent       int // the number of steps in exchange; they are the first ones
	exchange   exchange
	failed     error // the first failure of a part of the call
	done       func(c *call, failed error)
	name       []byte
}

// step is a command of a call: a run of the script, or the reset of a bucket if run is nil.
type step struct {
	run    *scriptRun
	bucket string
	reset  *backend.Decision

	to     *node
	full   bool // send the whole text of the script, not only its hash
	plain  bool // it was last sent without a shebang
	asking bool // the slot is moving to the node "to"
	sends  int
}

const (
	// maxSends is how often a command is sent: with a hash, with the text, without a shebang, with other calendar
	// windows, and to other nodes.
	maxSends = 6
	// tryAgainPause is the time before a command is sent again that needs several keys of a slot that is moving. It
	// doubles each time.
	tryAgainPause = time.Millisecond
)

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

// Take decides charges and waits for the decisions.
func (n *node) Take(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
	c := &call{charges: len(charges), runs: []run{{&backend.Batch{Charges: charges, Decisions: decisions}, 0, len(charges)}}}
	until, bounded := ctx.Deadline()
	if !bounded {
		until = n.clock.Now().Add(time.Minute)
	}
	ended := make(chan struct{})
	n.start(c, until, func(*call, error) { close(ended) })
	<-ended
}

// start makes the call c, which must end soon after the time until. Then it calls done, with an error if a part of the
// call failed; the decisions contain the errors, too.
func (n *node) start(c *call, until time.Time, done func(c *call, failed error)) {
	f := &c.payload
	f.used, f.failed, f.done, f.steps = 0, nil, done, f.steps[:0]
	x := &f.exchange
	x.until, x.leads = until, c.leads
	if x.done == nil {
		x.done = func() { n.proceed(c, n.replied) }
	}
	// If the server lacks the script, nothing is written. WAIT waits for the replicas nevertheless, which may take most of
	// the time of the call. So the first call has the whole text. So has a probe, because the server may have lost it.
	full := c.permit == doProbe || n.replicas.count > 0 && !n.loaded.Load()
	n.proceed(c, func(c *call) bool {
		n.plan(c, c.runs, false)
		for i := range f.steps {
			f.steps[i].full = full
		}
		return n.send(c)
	})
}

// proceed calls f, which reports whether c has ended. Unless it has, c must not be used after f.
func (n *node) proceed(c *call, f func(*call) bool) {
	if n.recovered(c, f) {
		c.payload.done(c, c.payload.failed)
	}
}

// recovered calls f. A panic ends c with an error: it is then unknown whether the charges were consumed.
func (n *node) recovered(c *call, f func(*call) bool) (over bool) {
	defer func() {
		if p := recover(); p != nil {
			n.panicked(p)
			over, c.payload.failed = true, fmt.Errorf("%w: panic: %v", backend.ErrUnavailable, p)
			c.fail(c.payload.failed)
		}
	}()
	return f(c)
}

// plan appends to c.payload.steps the commands that the charges of runs need: the resets, and one run of the script for
// all other charges or, with bySlot, one for each slot. A group is never divided, because all its buckets are in one slot.
func (n *node) plan(c *call, runs []run, bySlot bool) {
	f, group, first := &c.payload, 0, c.payload.used
	for _, r := range runs {
		charges, decisions := r.batch.Charges[:r.to], r.batch.Decisions[:r.to]
		var t *scriptRun
		for i := r.from; i < r.to; i++ {
			charge := &charges[i]
			f.name = n.keys.append(f.name[:0], charge)
			if charge.Reset {
				f.steps = append(f.steps, step{to: n, bucket: string(f.name), reset: &decisions[i]})
				continue
			}
			end, slot := len(f.name), 0 // the name of the record, if there is one, follows in the same buffer
			starts := i == r.from || charge.Group != charges[i-1].Group
			if starts {
				if n.at != nil && (bySlot || charge.IdempotencyKey != nil) { // only a cluster has several slots
					slot = n.keys.slot(charge)
				}
				t = f.find(first, slot, bySlot, c.charges)
			}
			t.slots = t.slots || n.at != nil && !bySlot && t.mayDiffer(charge, f.name)
			if starts {
				size := backend.GroupLen(charges[i:])
				t.runs = joined(t.runs, run{r.batch, i, i + size})
				group++
				if charge.IdempotencyKey != nil {
					f.name = n.keys.appendRecord(f.name, charge, slot, n.at != nil)
					t.head(charge.IdempotencyKey, size, f.name[end:])
				}
			}
			t.add(charge, &decisions[i], f.name[:end], group)
		}
	}
	now := algorithms.Micros(0)
	if n.now != nil {
		now = n.now()
	}
	for _, t := range f.scriptRuns[first:f.used] {
		t.finish(now, n.wall)
		f.steps = append(f.steps, step{run: t, to: n})
	}
}

// find returns the run of the script for a slot, among those from first on. If bySlot is false, one run serves all slots.
// most is the largest number of charges that the run may get.
func (f *payload) find(first, slot int, bySlot bool, most int) *scriptRun {
	for _, have := range f.scriptRuns[first:f.used] {
		if have.slot == slot || !bySlot {
			return have
		}
	}
	return f.scriptRun(slot, most)
}

// send sends the first steps of c that go to the same node. If there are none, c has ended.
func (n *node) send(c *call) (over bool) {
	f, x := &c.payload, &c.payload.exchange
	if len(f.steps) == 0 {
		return true
	}
	to, runs := f.steps[0].to, 0
	x.commands, f.sent = x.commands[:0], 0
	for i := range f.steps {
		s := &f.steps[i]
		if s.to != to {
			break
		}
		f.sent++
		s.sends++
		if s.asking {
			x.commands = append(x.commands, []any{"asking"})
		}
		if s.run == nil {
			x.commands = append(x.commands, []any{"del", s.bucket})
			continue
		}
		runs++
		s.plain = to.plain.Load()
		x.commands = append(x.commands, s.run.arguments(s.run.form(s.plain), s.full))
	}
	if n.replicas.count > 0 && runs > 0 {
		for i := range f.steps[:f.sent] {
			n.touch(x, &f.steps[i])
		}
		wait := min(n.replicas.wait, clock.Until(n.clock, x.until)*3/4)
		x.commands = append(x.commands, []any{"wait", n.replicas.count, max(1, wait.Milliseconds())})
	}
	to.wire.start(x)
	return false
}

// touch adds a write of each record of an idempotency key. Since Redis 7.2, WAIT waits only for the writes of its own
// connection. If the script only reads an answer from a record, it writes nothing. WAIT would then also count replicas
// that have neither the record nor the charge.
func (n *node) touch(x *exchange, s *step) {
	if s.run == nil {
		return
	}
	for _, is := range s.run.records {
		if s.asking {
			x.commands = append(x.commands, []any{"asking"})
		}
		x.commands = append(x.commands, []any{"pexpire", &s.run.keys[is.key-1], is.life})
	}
}

// replied handles the replies to the steps that were sent. It sends those again that certainly had no effect, and all
// others that have not been sent yet.
func (n *node) replied(c *call) (over bool) {
	f, x := &c.payload, &c.payload.exchange
	x.leads = false // the goroutine that waits for the call only reads the first replies
	sent, rest := f.steps[:f.sent], f.steps[f.sent:]
	f.steps, f.again = f.again[:0], f.steps
	unconfirmed := n.unconfirmed(x)
	pause, at := time.Duration(0), 0
	for i := range sent {
		s := &sent[i]
		err := x.err
		if err == nil {
			if s.asking {
				at++
			}
			err = s.receive(x.replies[at])
			at++
		}
		switch {
		case unconfirmed != nil && s.run != nil: // WAIT has used up most of the time
			f.failed = cmp.Or(f.failed, s.conclude(bothErrors(unconfirmed, err)))
		case x.err == nil && n.splits(c, s, err):
		case x.err == nil && s.sends < maxSends && n.repeats(s, err):
			if f.steps = append(f.steps, *s); isReply(err, "TRYAGAIN") {
				pause = tryAgainPause << s.sends
			}
		default:
			f.failed = cmp.Or(f.failed, s.conclude(err))
		}
	}
	f.steps = append(f.steps, rest...)
	clear(f.again)
	if pause > 0 {
		n.clock.AfterFunc(pause, func() { n.proceed(c, n.send) })
		return false
	}
	return n.send(c)
}

// unconfirmed returns the reason why replicas have not confirmed the writes of x, or nil.
func (n *node) unconfirmed(x *exchange) error {
	if n.replicas.count == 0 || x.err != nil || x.commands[len(x.commands)-1][0] != "wait" {
		return nil
	}
	r := x.replies[len(x.replies)-1]
	have, err := strconv.Atoi(r.text)
	switch {
	case r.kind == '-': // the script may have run nevertheless
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, refusal(r.text))
	case err != nil || have < n.replicas.count:
		return fmt.Errorf("%d of %d replicas have confirmed it in time", have, n.replicas.count)
	default:
		return nil
	}
}

// bothErrors returns an error that is both, if both are errors.
func bothErrors(first, second error) error {
	if second == nil {
		return first
	}
	return fmt.Errorf("%w: %w", first, second)
}

// receive stores the reply to s, and returns its error.
func (s *step) receive(r reply) (err error) {
	switch {
	case r.kind == '-':
		err = refusal(r.text)
	case r.kind != '$' && s.run != nil, r.kind != ':' && s.run == nil:
		err = fmt.Errorf("redis: invalid reply: %.20q", r.text)
	}
	if s.run != nil {
		s.run.reply, s.run.err = r.text, err
	}
	return err
}

// repeats reports whether s must be sent again, because the server has certainly not run it. If so, it prepares s.
func (n *node) repeats(s *step, err error) bool {
	switch {
	case err == nil && s.run != nil:
		now, outside := s.run.outsideCalendar()
		if outside {
			s.run.writeLimits(now)
		}
		return outside
	case isReply(err, "NOSCRIPT"):
		s.to.loaded.Store(false)
		s.full = true
	case isCompileError(err) && !s.plain: // the server does not know shebangs
		s.to.plain.Store(true)
		s.full = true
	case isRedirect(err):
		return n.redirects(s, err)
	default:
		return false
	}
	return true
}

// redirects makes s go to the node that err names. TRYAGAIN names none.
func (n *node) redirects(s *step, err error) bool {
	words := strings.Fields(err.Error())
	switch {
	case n.at == nil:
		return false
	case words[0] == "TRYAGAIN":
		return true
	case len(words) != 3:
		return false
	}
	s.to, s.asking, s.full = n.at(words[2]), words[0] == "ASK", true
	return s.to != nil
}

// splits replaces s by several runs of the script, and reports whether it has. After a slot has moved, each slot gets
// its own run, which can be redirected. After the script has failed at the value of a bucket, each half of the groups gets
// a run, so that only the groups of that bucket fail.
func (n *node) splits(c *call, s *step, err error) bool {
	f, t := &c.payload, s.run
	switch {
	case t == nil || err == nil:
		return false
	case t.slots && (isRedirect(err) || isForeign(err)):
		n.plan(c, t.runs, true)
		return true
	case !isSpoiled(err):
		return false
	}
	first, rest := halves(t.runs)
	if len(rest) == 0 {
		return false
	}
	from := len(f.steps)
	n.plan(c, first, false)
	n.plan(c, rest, false)
	for i := range f.steps[from:] {
		half := &f.steps[from+i]
		half.to, half.asking = s.to, s.asking
	}
	return true
}

// halves divides the groups of runs in two. rest is empty if there is one group.
func halves(runs []run) (first, rest []run) {
	all := 0
	for _, r := range runs {
		all += r.to - r.from
	}
	n := 0
	for _, r := range runs {
		for at := r.from; at < r.to; {
			size, _ := group(r.batch, at)
			next := run{r.batch, at, at + size}
			if n > 0 && n+size > all/2 {
				rest = append(rest, next)
				n = all
			} else {
				first = append(first, next)
				n += size
			}
			at += size
		}
	}
	return first, rest
}

// conclude makes the decisions of s, which has failed unless err is nil. It returns the error, unless the server works.
func (s *step) conclude(err error) error {
	if s.run == nil {
		if err != nil {
			err = unavailable(err)
		}
		*s.reset = backend.Decision{Decision: algorithms.Decision{Allowed: err == nil}, Err: err}
		return err
	}
	if err == nil && s.full {
		s.to.loaded.Store(true)
	}
	s.run.err = err
	failed := s.run.answer()
	if s.run.reply = ""; isSpoiled(err) {
		return nil
	}
	return failed
}

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
