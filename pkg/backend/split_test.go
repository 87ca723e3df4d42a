package backend_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// grouped makes groups of so many charges each. Costs count up from 1, so that answers show whose they are.
func grouped(sizes ...int) (charges []backend.Charge) {
	for group, size := range sizes {
		for range size {
			n := len(charges) + 1
			charges = append(charges, backend.Charge{Key: fmt.Appendf(nil, "k%d", n), Group: group, Ask: algorithms.Ask{Cost: int64(n)}})
		}
	}
	return charges
}

func repeated(n, size int) (sizes []int) {
	for range n {
		sizes = append(sizes, size)
	}
	return sizes
}

// starter starts what it takes on a goroutine of its own, until it refuses.
type starter struct {
	*recorder
	mu    sync.Mutex
	left  int           // Starts until it refuses; below 0: never
	pause time.Duration // before each answer
}

func (s *starter) Start(charges []backend.Charge, decisions []backend.Decision, done func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == 0 {
		return false
	}
	s.left--
	go func() {
		time.Sleep(s.pause)
		s.Take(context.Background(), charges, decisions)
		done()
	}()
	return true
}

// TestSplit: however many charges come at once, the Store below gets at most 256, in whole groups, and
// each gets its own answer.
func TestSplit(t *testing.T) {
	for name, groups := range map[string][]int{
		"few":                       {1, 2, 3},
		"just enough":               repeated(256, 1),
		"one more":                  repeated(257, 1),
		"36,000 requests":           repeated(36_000, 1),
		"80 requests of 100":        repeated(80, 100),
		"a group larger than most":  {1, 300, 1, 255, 1},
		"the largest group":         {backend.MaxGroup},
		"too large":                 {backend.MaxGroup + 1},
		"too large, among others":   {3, backend.MaxGroup + 1, 4, 2000, 8000, 1},
		"too large, before and aft": {8000, 5, 8000},
	} {
		for how, wrap := range map[string]func(backend.Taker) backend.Taker{
			"taken":   func(s backend.Taker) backend.Taker { return s },
			"started": storetest.Started,
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				below := &starter{recorder: &recorder{next: echo}, left: -1}
				charges := grouped(groups...)
				decisions := take(t.Context(), wrap(backend.Split(below, time.Hour)), charges...)
				at := 0
				for group, size := range groups {
					for i := range size {
						d := decisions[at]
						if size > backend.MaxGroup {
							if !errors.Is(d.Err, backend.ErrTooLarge) || errors.Is(d.Err, backend.ErrUnavailable) {
								t.Fatalf("charge %d of group %d, of %d: got %+v", i, group, size, d)
							}
						} else if d.Err != nil || d.Remaining != int64(at+1) {
							t.Fatalf("charge %d of group %d, of %d: got %+v", i, group, size, d)
						}
						at++
					}
				}
				for _, take := range below.all() {
					if n := backend.GroupLen(take); len(take) > 256 && n != len(take) {
						t.Errorf("%d charges at once", len(take))
					}
					if n := backend.GroupLen(take); n != groups[take[0].Group] {
						t.Errorf("%d of group %d, which has %d", n, take[0].Group, groups[take[0].Group])
					}
				}
			})
		}
	}
}

// TestSplitEnds: pieces that the Store below refuses, or whose time is over, are answered all the same, and
// say that they consumed nothing.
func TestSplitEnds(t *testing.T) {
	for name, below := range map[string]*starter{
		"refused":       {left: 2},
		"the time over": {left: -1, pause: 600 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				below.recorder = &recorder{next: echo}
				decisions := take(t.Context(), storetest.Started(backend.Split(below, time.Second)), grouped(repeated(1000, 1)...)...)
				for i, d := range decisions {
					switch sent := i < 512; {
					case sent && (d.Err != nil || d.Remaining != int64(i+1)):
						t.Fatalf("charge %d: got %+v", i, d)
					case !sent && !errors.Is(d.Err, backend.ErrNotTaken):
						t.Fatalf("charge %d was not sent: got %+v", i, d)
					}
				}
			})
		})
	}
	if backend.Split(echo, time.Second).(backend.Starter).Start(grouped(repeated(300, 1)...), make([]backend.Decision, 300), nil) {
		t.Error("a Taker that cannot start has started")
	}
}
