package backend

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// breakerPatience is how long a Store must fail, without one answer, before its Breaker opens. A fork
	// for a snapshot, a slow command or a busy machine stalls Redis for tens of milliseconds; opening then
	// would deny more than the stall does.
	breakerPatience = 100 * time.Millisecond
	// breakerCalls is how many calls must have failed by then: at a call a second two lost answers are no
	// outage.
	breakerCalls = 5
	// cutShortPatience replaces breakerPatience while the callers, and not the Store's timeout, end the calls:
	// the Store may be well, and only slower than they allow.
	cutShortPatience = time.Second
	// The pause between two probes doubles from minProbePause to maxProbePause.
	minProbePause = 10 * time.Millisecond
	maxProbePause = 200 * time.Millisecond
)

// Breaker stops calling a Store that fails: once it has given no answer for 100 ms, Takes are answered
// ErrUnavailable at once. Then single Takes are sent as probes, the first one immediately and the
// others after pauses of 10 ms growing to 200 ms. One answer closes the Breaker.
//
// timeout is how long a Take may last (0: no limit). A Take that its caller cancelled, or whose deadline
// was earlier than timeout, says little about the Store: such Takes open the Breaker only after a
// second without an answer.
//
// changed is called when the Breaker opens (true) and closes; it may be nil, and must not block.
func Breaker(next Taker, timeout time.Duration, changed func(open bool)) *BreakerStore {
	if changed == nil {
		changed = func(bool) {}
	}
	return &BreakerStore{next: next, timeout: timeout, changed: changed}
}

// BreakerStore is the Store that Breaker makes.
type BreakerStore struct {
	next    Taker
	timeout time.Duration
	changed func(open bool)

	mu      sync.Mutex
	circuit circuit // guarded by mu
}

// errOpen is the answer of an open Breaker.
var errOpen = fmt.Errorf("%w: not asked while it fails", ErrNotTaken)

// Take implements Store.
func (b *BreakerStore) Take(ctx context.Context, charges []Charge, decisions []Decision) {
	sent := time.Now()
	permit := b.step(call, sent)
	if permit == refuse {
		failAll(decisions, errOpen)
		return
	}
	outcome := failed // a panic is a failure too
	defer func() { b.ended(permit, outcome) }()
	b.next.Take(ctx, charges, decisions)
	outcome = answered
	for i := range decisions {
		if errors.Is(decisions[i].Err, ErrUnavailable) {
			outcome = b.failure(ctx, sent)
			return
		}
	}
}

// Reset implements Resetter where the Store below does.
func (b *BreakerStore) Reset(ctx context.Context, charge Charge) error {
	sent := time.Now()
	permit := b.step(call, sent)
	if permit == refuse {
		return errOpen
	}
	outcome := failed
	defer func() { b.ended(permit, outcome) }()
	err := Reset(ctx, b.next, charge)
	if outcome = answered; errors.Is(err, ErrUnavailable) {
		outcome = b.failure(ctx, sent)
	}
	return err
}

// Heard reports a sign of life of the server outside of Take: that it can be reached again, or that it has answered
// a Take that had ended. If the Breaker is open, the next Take is a probe.
func (b *BreakerStore) Heard() { b.step(heard, time.Now()) }

// failure distinguishes a Take that the Store failed from one that its caller ended early.
func (b *BreakerStore) failure(ctx context.Context, sent time.Time) event {
	end, ok := ctx.Deadline()
	early := ok && end.Before(sent.Add(b.timeout))
	if err := ctx.Err(); errors.Is(err, context.Canceled) || err != nil && early {
		return cutShort
	}
	return failed
}

// ended reports the outcome of a Take that permit let through.
func (b *BreakerStore) ended(permit effect, outcome event) {
	if permit == probe {
		outcome += ofProbe
	}
	b.step(outcome, time.Now())
}

// step is circuit's step on b's state.
func (b *BreakerStore) step(e event, now time.Time) effect {
	b.mu.Lock()
	defer b.mu.Unlock()
	var do effect
	switch b.circuit, do = b.circuit.step(e, now); do {
	case opened:
		b.changed(true)
	case closed:
		b.changed(false)
	}
	return do
}

// circuit is the state of a Breaker. The zero circuit is closed.
type circuit struct {
	since   time.Time // of the first failure after the last answer; zero: there was none
	misses  int       // failures after the last answer
	open    bool
	probing bool          // a probe is in flight
	probeAt time.Time     // the earliest time of the next probe
	pause   time.Duration // after the next probe that is not answered
}

// event is what happens to a circuit.
type event int

const (
	call  event = iota // a Take is to be sent
	heard              // the server gave a sign of life

	answered // a Take was answered
	failed   // a Take failed
	cutShort // a Take failed because its caller ended it
	ofProbe  // added to one of these three: that Take was the probe
)

// effect is what the shell does after a step.
type effect int

const (
	nothing effect = iota
	pass           // send the Take
	probe          // send the Take as the probe
	refuse         // answer it at once
	opened         // report it
	closed
)

// step is the whole behavior of a Breaker: a function of its state, an event and the time.
func (c circuit) step(e event, now time.Time) (circuit, effect) {
	if e >= answered+ofProbe {
		c.probing, c.probeAt = false, now.Add(c.pause)
		if e -= ofProbe; e == failed {
			c.pause = min(2*c.pause, maxProbePause)
		}
	}
	switch e {
	case call:
		switch {
		case !c.open:
			return c, pass
		case c.probing || now.Before(c.probeAt):
			return c, refuse
		default:
			c.probing = true
			return c, probe
		}
	case heard:
		c.probeAt = now
	case answered:
		was := c.open
		c = circuit{probing: c.probing}
		if was {
			return c, closed
		}
	case failed, cutShort:
		return c.miss(e, now)
	}
	return c, nothing
}

// miss counts a failure, and opens the circuit when it is one too many.
func (c circuit) miss(e event, now time.Time) (circuit, effect) {
	if c.since.IsZero() {
		c.since = now
	}
	c.misses = min(c.misses+1, breakerCalls)
	patience := breakerPatience
	if e == cutShort {
		patience = cutShortPatience
	}
	if c.open || c.misses < breakerCalls || now.Sub(c.since) < patience {
		return c, nothing
	}
	c.open, c.probeAt, c.pause = true, now, minProbePause
	return c, opened
}
