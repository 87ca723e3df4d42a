package redis

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/clock"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// sender sends the calls to one server. Batches that are submitted at the same time go into one call (queue).
// A server that fails gets no calls except probes (circuit).
//
// Each call has the timeout of the sender, whatever the deadlines of its batches are. So a batch with little
// time does not end a call that other batches need.
type sender struct {
	// decide makes the call c, which must end soon after the time until. Then it calls done, with an error if a part of
	// the call failed; the error wraps backend.ErrUnavailable. decide does not wait.
	decide  func(c *call, until time.Time, done func(c *call, failed error))
	ended   func(c *call, failed error) // the method callEnded, stored once so that a call does not allocate
	timeout time.Duration
	// probeTimeout is the timeout of a call that probes a server. Such a call often prepares a connection first (dial, log
	// in, load the script). A caller still waits no longer than until its own deadline.
	probeTimeout time.Duration
	spawn        func(f func())
	// lead is called after decide, by the goroutine that waits for the end of the call. It may use the goroutine until then.
	lead func()
	// end releases what decide uses.
	end func()
	// changed is called with true when the circuit opens, and with false when it closes. It must not block, because mu is
	// locked during the call.
	changed func(open bool)
	// panicked is called with the value of a panic on a goroutine that serves several batches.
	panicked func(value any)

	clock  clock.Clock
	worker func() // the method work, stored once so that spawn does not allocate
	calls  sync.Pool

	mu      sync.Mutex
	queue   queue // this and the following fields are guarded by mu
	circuit circuit
	timer   clock.Timer // calls tick
	closed  bool
}

var errClosed = fmt.Errorf("%w: the store is closed", backend.ErrNotTaken)

func newSender(timeout time.Duration, decide func(c *call, until time.Time, done func(c *call, failed error))) *sender {
	l := &sender{
		clock: clock.System, decide: decide, timeout: timeout, probeTimeout: timeout, queue: newQueue(timeout),
		spawn:    func(f func()) { go f() },
		changed:  func(bool) {},
		panicked: func(any) {},
		lead:     func() {},
		end:      func() {},
	}
	l.worker, l.ended = func() { l.work(nil, l.clock.Now()) }, l.callEnded
	l.calls.New = func() any { return &call{} }
	return l
}

func (l *sender) Submit(b *backend.Batch) {
	if len(b.Charges) == 0 {
		b.Done(b)
		return
	}
	now := l.clock.Now()
	var do effects
	l.mu.Lock()
	leads := b.Waits && l.queue.idle() && !l.circuit.open && !l.short(b.Deadline, now) // with an open circuit the call may be a probe, which may end after the deadline of b
	err := l.refuses(now)
	if err == nil {
		do, err = l.queue.submit(b, now)
		l.arm(do)
	}
	l.mu.Unlock()
	switch {
	case err != nil:
		b.Fail(err)
	case do.start && leads:
		l.work(b, now)
		l.lead()
	case do.start:
		l.spawn(l.worker)
	}
}

// short reports whether less than seven eighths of the timeout of a call remain until deadline, if there is one.
// If a call ended so early without an answer, that would not show that the server fails.
func (l *sender) short(deadline, now time.Time) bool {
	return !deadline.IsZero() && deadline.Sub(now) < l.timeout-l.timeout/8
}

// refuses returns an error if no batch may be submitted now. mu must be held.
func (l *sender) refuses(now time.Time) error {
	switch {
	case l.closed:
		return errClosed
	case l.circuit.pausing(now):
		return errOpen
	default:
		return nil
	}
}

// arm sets the timer for tick if the effects in do require it. mu must be held.
func (l *sender) arm(do effects) {
	switch {
	case do.tickAfter <= 0:
	case l.timer == nil:
		l.timer = l.clock.AfterFunc(do.tickAfter, l.tick)
	default:
		l.timer.Reset(do.tickAfter)
	}
}

func (l *sender) tick() {
	l.mu.Lock()
	now := l.clock.Now()
	do := l.queue.tick(now)
	l.arm(do)
	l.mu.Unlock()
	if do.start {
		l.work(nil, now)
	}
}

// few is the number of batches that may be completed before the next call starts. Completing so few is faster
// than letting another goroutine start the call.
const few = 8

// work makes the call that is due now. If leader is not nil, the calling goroutine waits for that batch, so the call ends by
// its deadline at the latest.
func (l *sender) work(leader *backend.Batch, now time.Time) {
	c, until := l.calls.Get().(*call), now.Add(l.timeout)
	if c.leads = leader != nil; c.leads && !leader.Deadline.IsZero() && leader.Deadline.Before(until) {
		until = leader.Deadline
	}
	l.mu.Lock()
	l.fill(c, now)
	l.mu.Unlock()
	var late *call // its batches are not sent (too late, canceled)
	if len(c.ended) > 0 {
		late, c.ended = &call{ended: c.ended}, nil
	}
	switch {
	case len(c.runs) == 0:
		l.calls.Put(c)
	case c.permit == doRefuse:
		c.fail(errOpen)
		l.complete(c, nil)
		l.spawn(func() { l.concluded(c) })
	case c.permit == doProbe:
		l.decide(c, now.Add(l.probeTimeout), l.ended)
	default:
		l.decide(c, until, l.ended)
	}
	if late != nil {
		l.completeBatches(late)
	}
}

// callEnded ends the call c, which was sent. failed is not nil if a part of it failed.
func (l *sender) callEnded(c *call, failed error) {
	l.complete(c, failed)
	l.concluded(c)
}

// concluded completes the batches that have ended with the call c, and starts the next call if one is due.
func (l *sender) concluded(c *call) {
	next := len(c.ended) <= few
	if next {
		l.completeBatches(c)
	}
	if now := l.clock.Now(); l.endCall(now) {
		l.work(nil, now)
	}
	if !next {
		l.completeBatches(c)
	}
	l.calls.Put(c)
}

// endCall ends a call, and reports whether another one is due.
func (l *sender) endCall(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	do := l.queue.callEnded(now)
	l.arm(do)
	return do.start
}

// fill moves waiting charges to c, and makes the circuit decide whether to send c. mu must be held.
func (l *sender) fill(c *call, now time.Time) {
	if l.queue.fill(c, now) {
		c.permit = l.step(callStarts, now)
	}
}

// step applies an event to the circuit, and calls changed if the circuit has opened or closed. mu must be held.
func (l *sender) step(e event, now time.Time) effect {
	var do effect
	switch l.circuit, do = l.circuit.step(e, now); do {
	case doReportOpen:
		l.changed(true)
	case doReportClosed:
		l.changed(false)
	}
	return do
}

// signOfLife reports a sign of life that is not the answer to a call in flight: the server can be reached
// again, or it has answered a call that had already ended. If the circuit is open, the next call is a probe.
func (l *sender) signOfLife() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.step(serverHeard, l.clock.Now())
}

// works reports whether the circuit is closed.
func (l *sender) works() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.circuit.open
}

// answeredElsewhere closes the circuit, because another sender to the server works.
func (l *sender) answeredElsewhere() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.step(callAnswered, l.clock.Now())
}

// complete returns the batches of c to the queue after the call has ended. Afterwards c.ended has the completed ones.
func (l *sender) complete(c *call, failed error) {
	c.markKnown()
	outcome := callAnswered
	if failed != nil {
		outcome = callFailed
	}
	if c.permit == doProbe {
		outcome += ofProbe
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.permit != doRefuse {
		now := l.clock.Now()
		l.step(outcome, now)
		if c.permit == doSend {
			l.queue.took(c, now, failed != nil)
		}
	}
	l.queue.complete(c)
	if l.closed {
		c.ended = l.queue.drain(errClosed, c.ended)
	}
}

// guard calls f, which makes a call without charges, unless the circuit refuses it. ctx bounds the call. If the call
// fails, that counts as a failure for the circuit only if it had as much time as a usual call, or if it was the probe.
func (l *sender) guard(ctx context.Context, f func() error) error {
	now := l.clock.Now()
	l.mu.Lock()
	err, permit := l.refuses(now), doRefuse
	if err == nil {
		permit = l.step(callStarts, now)
	}
	l.mu.Unlock()
	if permit == doRefuse {
		return cmp.Or(err, errOpen)
	}
	end, _ := ctx.Deadline()
	outcome := callAnswered
	if err = f(); err != nil {
		outcome = callFailed
	}
	if permit == doProbe {
		outcome += ofProbe
	} else if err != nil && l.short(end, now) {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.step(outcome, l.clock.Now())
	return err
}

func (l *sender) completeBatches(c *call) {
	for i, b := range c.ended {
		source := b.Source // read before Done, because after Done b belongs to the caller again
		l.guarded(b, nil)
		if n := len(c.sources); source != nil && source.Flush != nil && (n == 0 || c.sources[n-1] != source) {
			c.sources = append(c.sources, source)
		}
		c.ended[i] = nil
	}
	c.ended = c.ended[:0]
	for i, source := range c.sources {
		l.guarded(nil, source)
		c.sources[i] = nil
	}
	c.sources = c.sources[:0]
}

// guarded calls Done of b, or Flush of source if b is nil. A panic in these functions does not affect other
// batches.
func (l *sender) guarded(b *backend.Batch, source *backend.Source) {
	defer func() {
		if p := recover(); p != nil {
			l.panicked(p)
		}
	}()
	if b != nil {
		b.Done(b)
	} else {
		source.Flush()
	}
}

// close fails all batches that wait now or are submitted later. Calls in flight end by themselves.
func (l *sender) close() {
	c := &call{}
	l.mu.Lock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	c.ended = l.queue.drain(errClosed, nil)
	l.mu.Unlock()
	l.end()
	l.completeBatches(c)
}
