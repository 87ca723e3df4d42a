// Package outside supplies what a store needs from its machine: time, timers, goroutines, random numbers,
// and calls to servers. A program uses those of the system. A simulation supplies its own, and then runs
// the same code on one seeded loop.
package outside

import (
	"context"
	"time"
)

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

// World replaces the machine of a process in a simulation.
type World struct {
	Clock Clock
	// Go runs f concurrently.
	Go func(f func())
	// Random fills p with random bytes. Below returns a random number from 0 to n-1.
	Random func(p []byte)
	Below  func(n int) int
	Pause  func(d time.Duration)
	// Watch starts to watch the Sentinel at addr, and returns. From then on it calls onMaster with each address
	// of the master that the Sentinel reports, and onMessage with each message that the Sentinel publishes.
	Watch func(addr string, onMaster func(master string), onMessage func(channel, payload string))
	// Call sends commands to a server in one write, and waits for the replies until ctx ends. It sets Reply or
	// Err of each command.
	Call func(ctx context.Context, server string, commands []Command)
}

// Command is one command to a Redis server, with its reply or error. An error reply of the server is an
// ErrorReply.
type Command struct {
	Args  []any
	Reply any // string, int64, []any, []Slots, or nil
	Err   error
}

// Slots is a part of the reply to CLUSTER SLOTS: the node at Addr is the master of the slots From to To, both included.
type Slots struct {
	From, To int
	Addr     string
}

// ErrorReply is an error that a server replied.
type ErrorReply string

func (e ErrorReply) Error() string { return string(e) }

// RedisError marks e as a reply, for the Redis client.
func (ErrorReply) RedisError() {}
