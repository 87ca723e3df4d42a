package redis

import (
	"fmt"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

const (
	// breakerDelay is how long a server must fail, without one answer, before its circuit breaker opens.
	// A fork for a snapshot, a slow command or a busy machine stalls Redis for tens of milliseconds. If the
	// breaker opened then, it would deny more requests than the stall does.
	breakerDelay = 100 * time.Millisecond
	// breakerCalls is the number of calls that must have failed before the breaker opens. With one call a
	// second, two lost answers are not an outage.
	breakerCalls = 5
	// The time between the starts of two probes doubles from minProbePause up to maxProbePause.
	minProbePause = 10 * time.Millisecond
	maxProbePause = 200 * time.Millisecond
)

var errOpen = fmt.Errorf("%w: the circuit breaker is open", backend.ErrNotTaken)

// circuit is the state of a circuit breaker, which stops calls to a server that fails.
//
// When at least five calls have failed without an answer in between, the first of them at least 100 ms ago, the
// circuit opens. Groups are then answered ErrNotTaken at once. Single calls are sent as probes, the first one
// immediately and the others at intervals that grow from 10 ms to 200 ms. One answer closes the circuit. After a
// sign of life (sender.signOfLife) the next call is a probe, even if another probe is in flight, because the earlier
// probe may be on a dead connection.
//
// The zero circuit is closed.
type circuit struct {
	firstFailure time.Time // the time of the first failure after the last answer; zero if there was none
	misses       int       // the number of failures after the last answer, at most breakerCalls
	open         bool
	probing      bool          // a probe is in flight
	probeAt      time.Time     // the earliest time of the next probe
	pause        time.Duration // the time from the start of the next probe to the start of the one after
}

type event int

const (
	callStarts event = iota
	serverHeard

	callAnswered
	callFailed
	ofProbe // added to callAnswered or callFailed if the call was the probe
)

// effect is the action that the caller must take after a step.
type effect int

const (
	doNothing effect = iota
	doSend
	doProbe  // send the call as the probe
	doRefuse // answer the call with errOpen, without sending it
	doReportOpen
	doReportClosed
)

func (c *circuit) pausing(now time.Time) bool {
	return c.open && !c.probing && now.Before(c.probeAt)
}

func (c circuit) step(e event, now time.Time) (circuit, effect) {
	if e >= callAnswered+ofProbe {
		c.probing = false
		e -= ofProbe
	}
	switch e {
	case callStarts:
		switch {
		case !c.open:
			return c, doSend
		case c.probing || c.pausing(now):
			return c, doRefuse
		default:
			c.probing, c.probeAt = true, now.Add(c.pause)
			c.pause = min(2*c.pause, maxProbePause)
			return c, doProbe
		}
	case serverHeard:
		c.probing, c.probeAt, c.pause = false, now, minProbePause
	case callAnswered:
		was := c.open
		c = circuit{probing: c.probing}
		if was {
			return c, doReportClosed
		}
	case callFailed:
		return c.miss(now)
	}
	return c, doNothing
}

func (c circuit) miss(now time.Time) (circuit, effect) {
	if c.firstFailure.IsZero() {
		c.firstFailure = now
	}
	c.misses = min(c.misses+1, breakerCalls)
	if c.open || c.misses < breakerCalls || now.Sub(c.firstFailure) < breakerDelay {
		return c, doNothing
	}
	c.open, c.probeAt, c.pause = true, now, minProbePause
	return c, doReportOpen
}
