// Package clock supplies time and timers to Stores. A program uses those of the system. A simulation supplies its own, and
// then runs the same code on one seeded loop.
package clock

import "time"

// Clock returns the time and calls functions later.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f after d. It returns at once.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is a call scheduled by AfterFunc, like a *time.Timer.
type Timer interface {
	Reset(d time.Duration) bool
	Stop() bool
}

// System is the Clock of package time.
var System Clock = system{}

type system struct{}

func (system) Now() time.Time { return time.Now() }

func (system) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// Until returns the time from now until t, by the clock c.
func Until(c Clock, t time.Time) time.Duration { return t.Sub(c.Now()) }
