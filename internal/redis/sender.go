package redis

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/outside"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// sender sends the calls to one server. Batches that are submitted at the same time go into one call (queue).
// A server that fails gets no calls except probes (circuit).
//
// Each call has the timeout of the sender, whatever the deadlines of its batches are. So a batch with little
// time does not end a call that other batches need.
type sender struct {
	// decide makes a call. An error means that a part of the call failed; the error wraps
	// backend.ErrUnavailable.
	decide  func(ctx context.Context, c *call) error
	timeout time.Duration
	// probe replaces decide for a call that probes a server, with probeTimeout as the timeout. Such a call often
	// prepares a connection first (dial, log in, load the script). A caller still waits no longer than until
	// its own deadline.
	probe        func(ctx context.Context, c *call) error
	probeTimeout time.Duration
	spawn        func(f func())
	// start arranges that the call that is due is made soon. If start is nil, spawn runs worker for it.
	start func(l *sender)
	wire  *wire // nil if decide makes all calls
	// changed is called with true when the circuit opens, and with false when it closes. It must not block, because mu is
	// locked during the call.
	changed func(open bool)
	// panicked is called with the value of a panic on a goroutine that serves several batches.
	panicked func(value any)

	clock  outside.Clock
	worker func() // the method run, stored once so that spawn does not allocate
	calls  sync.Pool

	mu      sync.Mutex
	queue   queue // this and the following fields are guarded by mu
	circuit circuit
	timer   outside.Timer // calls tick
	closed  bool
}

var errClosed = fmt.Errorf("%w: the store is closed", backend.ErrNotTaken)

func newSender(timeout time.Duration, decide func(ctx context.Context, c *call) error) *sender {
	l := &sender{
		clock: outside.System, decide: decide, timeout: timeout, probe: decide, probeTimeout: timeout, queue: newQueue(timeout),
		spawn:    func(f func()) { go f() },
		changed:  func(bool) {},
		panicked: func(any) {},
	}
	l.worker = l.run
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
	here := b.Waits && l.queue.idle() && !l.circuit.open && !l.hasShortDeadline(b, now) // with an open circuit the call may be a probe, which may end after the deadline of b
	err := l.refuses(now)
	if err == nil {
		do, err = l.queue.submit(b, now)
	}
	var c *call
	if err == nil && here {
		c = l.calls.Get().(*call)
		l.fill(c, now)
	} else if err == nil {
		l.arm(do)
	}
	l.mu.Unlock()
	switch {
	case err != nil:
		b.Fail(err)
	case here:
		l.callHere(c, b, now)
	case do.start:
		l.begin()
	}
}

func (l *sender) begin() {
	if l.start != nil {
		l.start(l)
	} else {
		l.spawn(l.worker)
	}
}

// hasShortDeadline reports whether less than seven eighths of the timeout of a call remain until the deadline of b.
// If a call ended so early without an answer, that would not show that the server fails.
func (l *sender) hasShortDeadline(b *backend.Batch, now time.Time) bool {
	return !b.Deadline.IsZero() && b.Deadline.Sub(now) < l.timeout-l.timeout/8
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
	do := l.queue.tick(l.clock.Now())
	l.arm(do)
	l.mu.Unlock()
	if do.start {
		l.run()
	}
}

// callHere makes the call c, which carries only b, on the goroutine that submitted b. That goroutine waits
// anyway, and waking another goroutine takes longer than the rest of a call. The call ends by b's deadline
// at the latest.
func (l *sender) callHere(c *call, b *backend.Batch, now time.Time) {
	until := now.Add(l.timeout)
	if !b.Deadline.IsZero() && b.Deadline.Before(until) {
		until = b.Deadline
	}
	if len(c.runs) > 0 {
		l.send(c, until)
		l.finishCall()
	}
	l.completeBatches(c)
	l.calls.Put(c)
}

// few is the number of batches that may be completed before the next call starts. Completing so few is faster
// than letting another goroutine start the call.
const few = 8

// byWire makes the call that is due. It returns false, and makes no call, if the wire is not free. If the wire
// cannot send this call, another goroutine makes it with decide.
func (l *sender) byWire(now time.Time) bool {
	if l.wire == nil || !l.wire.reserve() {
		return false
	}
	c := l.calls.Get().(*call)
	l.mu.Lock()
	l.fill(c, now)
	l.mu.Unlock()
	if len(c.ended) > 0 || c.permit != doSend || !l.wire.send(c, now.Add(l.timeout)) {
		l.wire.release()
		l.spawn(func() { l.makeCalls(c, now) })
	}
	return true
}

func (l *sender) run() {
	if !l.byWire(l.clock.Now()) {
		l.work()
	}
}

// work makes the calls that are due with decide, until the wire can make them or none is due.
func (l *sender) work() {
	c, now := l.calls.Get().(*call), l.clock.Now()
	l.mu.Lock()
	l.fill(c, now)
	l.mu.Unlock()
	l.makeCalls(c, now)
}

// makeCalls makes the call c with decide; c was filled at time now. Then it makes the calls that have become due,
// until the wire can make them or none is due.
func (l *sender) makeCalls(c *call, now time.Time) {
	defer l.calls.Put(c)
	for {
		if len(c.ended) > few && len(c.runs) > 0 { // these batches are not sent (too late, canceled); completing them must not delay the call
			late := &call{ended: c.ended}
			c.ended = nil
			l.spawn(func() { l.completeBatches(late) })
		}
		l.completeBatches(c)
		if len(c.runs) == 0 {
			return
		}
		l.send(c, now.Add(l.timeout))
		if len(c.ended) > few {
			l.finishCall()
			l.completeBatches(c)
			return
		}
		l.completeBatches(c)
		now = l.clock.Now()
		if !l.endCall(now) || l.byWire(now) {
			return
		}
		l.mu.Lock()
		l.fill(c, now)
		l.mu.Unlock()
	}
}

// concluded ends the call c, which the wire has sent, after its answer has arrived or the wire has failed.
func (l *sender) concluded(c *call) {
	if len(c.ended) > few {
		l.finishCall()
		l.completeBatches(c)
	} else {
		l.completeBatches(c)
		l.finishCall()
	}
	l.calls.Put(c)
}

func (l *sender) finishCall() {
	if now := l.clock.Now(); l.endCall(now) && !l.byWire(now) {
		l.spawn(l.worker)
	}
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

// send makes the call c, which must end by the time until, or within probeTimeout if it is a probe. If the circuit
// refuses the call, send answers it with an error. Afterwards c.ended has the completed batches.
func (l *sender) send(c *call, until time.Time) {
	outcome, decide := callAnswered, l.decide
	if c.permit == doProbe {
		decide, until = l.probe, l.clock.Now().Add(l.probeTimeout)
	}
	if c.permit == doRefuse {
		c.fail(errOpen)
	} else if l.try(c, decide, until) != nil {
		outcome = callFailed
	}
	if c.permit == doProbe {
		outcome += ofProbe
	}
	if l.wire != nil && outcome == callAnswered {
		l.wire.dial()
	}
	l.complete(c, outcome)
}

// complete returns the batches of c to the queue after the call has ended. Afterwards c.ended has the completed ones.
func (l *sender) complete(c *call, outcome event) {
	c.markKnown()
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.permit != doRefuse {
		now := l.clock.Now()
		l.step(outcome, now)
		if c.permit == doSend {
			l.queue.took(c, now, outcome == callFailed)
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
	end, ok := ctx.Deadline()
	short := ok && end.Sub(now) < l.timeout-l.timeout/8
	outcome := callAnswered
	if err = f(); err != nil {
		outcome = callFailed
	}
	if permit == doProbe {
		outcome += ofProbe
	} else if err != nil && short {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.step(outcome, l.clock.Now())
	return err
}

// try makes the call c. If the call panics, try returns an error: it is then unknown whether the charges were
// consumed.
func (l *sender) try(c *call, decide func(context.Context, *call) error, until time.Time) (err error) {
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			l.panicked(p)
			err = fmt.Errorf("%w: panic: %v", backend.ErrUnavailable, p)
			c.fail(err)
		}
	}()
	return decide(ctx, c)
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
	if l.wire != nil {
		l.wire.close()
	}
	l.completeBatches(c)
}
