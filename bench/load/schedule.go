package load

import (
	"math/rand/v2"
	"syscall"
	"time"
)

// schedule determines the times of the requests of one connection. In a closed loop several
// goroutines may use it; in an open loop only one may.
type schedule struct {
	*run
	every time.Duration // in an open loop, the time between two requests; 0 in a closed loop
	due   time.Duration // in an open loop, when the next request is due
}

// newSchedule returns the schedule of connection i. In an open loop, the connections send requests in turn.
func newSchedule(r *run, i int) *schedule {
	s := &schedule{run: r}
	if r.Rate > 0 {
		s.every = time.Duration(float64(r.Connections) / r.Rate * float64(time.Second))
		s.due = s.every * time.Duration(i) / time.Duration(r.Connections)
	}
	return s
}

func (s *schedule) open() bool { return s.every > 0 }

// next returns when the next request is due. In a closed loop that is now. It returns false if there are no
// further requests.
func (s *schedule) next() (at time.Duration, more bool) {
	if s.over.Load() {
		return 0, false
	}
	at = s.now()
	if s.open() {
		at = s.due
		s.due += s.every
		if s.Requests == 0 && at >= s.Warmup+s.Duration {
			return 0, false
		}
	}
	if s.Requests > 0 && s.started.Add(1) > s.Requests {
		return 0, false
	}
	return at, true
}

// sleepUntil returns at the given time. The goroutine should be locked to its thread. On an idle processor
// the timers of the Go runtime are late by a millisecond, while sleepUntil is late by 50 µs.
func (s *schedule) sleepUntil(at time.Duration) {
	for d := at - s.now(); d > 0; d = at - s.now() {
		t := syscall.NsecToTimespec(int64(d))
		_ = syscall.Nanosleep(&t, nil) // after an early wake-up the loop checks the time again
	}
}

// keys chooses the keys of requests, for one goroutine.
type keys struct {
	run  *run
	dice *rand.Rand
}

func newKeys(r *run) keys {
	return keys{run: r, dice: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))}
}

func (k *keys) next() int {
	n := 0
	switch {
	case k.run.Keys == 1:
	case k.run.InTurn:
		n = int((k.run.turn.Add(1) - 1) % int64(k.run.Keys))
	default:
		n = k.dice.IntN(k.run.Keys)
	}
	return k.run.FirstKey + n
}
