// Package load sends many requests to an Envoy RateLimitService and measures the cost of an answer.
//
// The client works on HTTP/2 frames. It makes one write for all requests that can be sent, as a proxy under load does.
// It has two modes. In a closed loop every answer starts the next request, so the server is always busy, and
// latencies show little more than the length of the queue. In an open loop requests are due at a fixed rate,
// whether or not answers arrive. A latency counts from the time at which the request was due, so that a stall
// affects the latency of every request that was due during the stall.
//
// On a shared machine, elapsed times mean little. The processor time of the server for a request means more.
// The ratio between two servers that are measured in turn means most. The package runs only on Linux.
package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// answerTimeout bounds the wait for the last answers of a run, and for the first answer on a connection. Tests shorten
// it.
var answerTimeout = 30 * time.Second

// Config describes a run. Run replaces zero fields by their defaults.
type Config struct {
	Target      string // host:port or unix:///path
	Connections int    // the default is 4
	Outstanding int    // requests of one connection that may wait for their answers; the default is 16

	Domain      string   // the default is "bench"
	Descriptors []string // key=value[,key=value]…, where the number of the key replaces "{}"; the default is "user_id={}"
	Keys        int      // number of keys; the default is 1
	FirstKey    int      // the lowest number of a key
	InTurn      bool     // uses the keys one after the other, not at random

	// Settle makes about half of the requests settlements. Each settles the reservation in the answer to an
	// earlier request. An answer without a reservation is an error.
	Settle bool

	Rate     float64       // requests a second in an open loop; 0 means a closed loop
	Requests int64         // stop after this many requests; 0 means after Duration
	Warmup   time.Duration // time in which requests are sent but not measured; cannot be combined with Requests
	Duration time.Duration // the default is 3s

	PID int // the server's process, whose CPU time is measured; 0 means that it is not measured
}

func (c *Config) check() error {
	if c.Connections == 0 {
		c.Connections = 4
	}
	if c.Outstanding == 0 {
		c.Outstanding = 16
	}
	if c.Domain == "" {
		c.Domain = "bench"
	}
	if len(c.Descriptors) == 0 {
		c.Descriptors = []string{"user_id={}"}
	}
	if c.Keys == 0 {
		c.Keys = 1
	}
	if c.Duration == 0 {
		c.Duration = 3 * time.Second
	}
	switch {
	case c.Target == "":
		return errors.New("no target")
	case c.Connections < 0 || c.Outstanding < 0 || c.Rate < 0 || c.Requests < 0 || c.Warmup < 0 || c.Duration < 0:
		return errors.New("no number may be negative")
	case c.Keys < 1 || c.FirstKey < 0 || c.FirstKey+c.Keys > maxKeys:
		return fmt.Errorf("keys must be numbers from 0 to %d", maxKeys-1)
	case c.Requests > 0 && c.Warmup > 0:
		return errors.New("a number of requests and a warm-up cannot be combined")
	}
	return nil
}

// Run sends the requests that c describes. It returns an error if there is no usable Result. Errors of the
// server are not returned, but counted in the Result.
func Run(ctx context.Context, c Config) (Result, error) {
	if err := c.check(); err != nil {
		return Result{}, err
	}
	request, err := newRequest(c.Domain, c.Descriptors)
	if err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	r := &run{Config: c}
	connections := make([]*rawConnection, c.Connections)
	for i := range connections {
		if connections[i], err = dialRaw(ctx, r, request); err != nil {
			return Result{}, fmt.Errorf("connect to %s: %w", c.Target, err)
		}
		defer connections[i].close()
	}

	recorders := make([]*recorder, c.Connections)
	result, err := r.measure(func() (answered <-chan struct{}) {
		var senders sync.WaitGroup
		for i, conn := range connections {
			senders.Go(func() { recorders[i] = conn.send(ctx, newSchedule(r, i)) })
		}
		done := make(chan struct{})
		go func() { senders.Wait(); cancel(); close(done) }()
		return done
	}, cancel)
	if err != nil {
		return Result{}, err
	}
	total := newRecorder(r)
	for _, recorder := range recorders {
		total.merge(recorder)
	}
	result.fill(c, total)
	return result, nil
}

type run struct {
	Config
	start     time.Time
	turn      atomic.Int64 // with InTurn, the number of keys used so far
	started   atomic.Int64 // with Requests, the number of requests that were started
	measuring atomic.Bool
	over      atomic.Bool // no further requests are sent
}

func (r *run) now() time.Duration { return time.Since(r.start) }

// measure calls send, which sends requests, and returns the duration and the cost of the measured part. With Requests,
// a loop ends with its last answer. Otherwise measure stops a closed loop after Duration. An open loop ends with its
// last answer. If that has not arrived answerTimeout after Duration, measure stops the loop. measure returns when no
// request is sent any more.
func (r *run) measure(send func() (answered <-chan struct{}), cancel func()) (result Result, err error) {
	var from, to sample
	begin := func() { from, err = r.sample(); r.measuring.Store(true) }
	r.start = time.Now()
	if r.Warmup == 0 {
		begin()
	}
	answered := send()
	defer func() { cancel(); <-answered }()
	wait := func(d time.Duration) (inTime bool) {
		select {
		case <-answered:
			return true
		case <-time.After(d):
			return false
		}
	}
	if r.Warmup > 0 {
		wait(r.Warmup)
		begin()
	}
	if err != nil {
		return Result{}, err
	}

	inTime := true
	switch {
	case r.Requests > 0:
		<-answered
		to, err = r.sample()
	case r.Rate > 0:
		wait(r.Duration)
		if inTime = wait(answerTimeout); !inTime {
			// The machine is too slow for the rate. The Result shows this, because its rate is lower than
			// requested. An error would hide the Result.
			r.over.Store(true)
			inTime = wait(answerTimeout)
		}
		to, err = r.sample()
	default:
		wait(r.Duration)
		r.measuring.Store(false)
		to, err = r.sample()
		r.over.Store(true)
		inTime = wait(answerTimeout)
	}
	switch {
	case err != nil:
		return Result{}, err
	case !inTime:
		return Result{}, fmt.Errorf("requests were still unanswered after %v", answerTimeout)
	}
	return Result{Seconds: (to.at - from.at).Seconds(), cpu: to.cpu - from.cpu}, nil
}

type sample struct {
	at  time.Duration
	cpu time.Duration
}

func (r *run) sample() (s sample, err error) {
	if r.PID != 0 {
		s.cpu, err = CPU(r.PID)
	}
	s.at = r.now()
	return s, err
}
