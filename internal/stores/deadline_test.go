package stores_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func TestDeadlineIsTheEarlierOne(t *testing.T) {
	for name, test := range map[string]struct{ caller, want time.Duration }{
		"no caller's deadline":         {0, 5 * ms},
		"the caller has more time":     {time.Second, 5 * ms},
		"the caller has a little more": {6 * ms, 5 * ms},
		"the caller less the margin":   {4 * ms, 3 * ms},
		"just the margin":              {ms, 0},
		"less than the margin":         {ms / 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				next := &recorder{next: after(time.Hour, echo)}
				s := stores.Deadline(nil, next, 5*ms, ms, nil)
				ctx := t.Context()
				if test.caller > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.caller)
					defer cancel()
				}
				start := time.Now()
				d := take(ctx, s, costs(true, 1, 2)...)
				if got := time.Since(start); got != test.want {
					t.Errorf("answered after %v, want %v", got, test.want)
				}
				for i := range d {
					if !errors.Is(d[i].Err, backend.ErrUnavailable) {
						t.Errorf("got %+v; want the error backend.ErrUnavailable", d[i])
					}
				}
				if calls := next.count() == 1; calls != (test.want > 0) {
					t.Errorf("next was called: %v, with %v left; want %v", calls, test.want, test.want > 0)
				}
			})
		})
	}
}

// Each batch ends when the Store has decided it, but at the latest 1 ms (the margin) before its own deadline, or after
// the timeout, in whatever order the batches end. A Done that panics affects no other batch.
func TestEachBatchEndsAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 2))
		var panics, flushes, ended atomic.Int64
		next := submitFunc(func(b *backend.Batch) { // decides after as many microseconds as the charge costs
			b.Decisions[0].Allowed = true
			if after := b.Charges[0].Terms.Cost; after > 0 {
				time.AfterFunc(time.Duration(after)*time.Microsecond, b.Finish)
				return
			}
			b.Finish()
		})
		s := stores.Deadline(nil, next, 100*ms, ms, func(any) { panics.Add(1) })
		source := &backend.Source{Flush: func() { flushes.Add(1) }}
		for i := range 500 {
			left, answer := time.Duration(2+rng.IntN(150))*ms, time.Duration(rng.IntN(200))*ms+ms/2
			if i%5 == 0 {
				answer = 0
			}
			start, want := time.Now(), min(left-ms, 100*ms, answer)
			b := &backend.Batch{
				Charges: costs(true, answer.Microseconds()), Decisions: make([]backend.Decision, 1), Deadline: start.Add(left), Source: source,
			}
			b.Done = func(*backend.Batch) {
				ended.Add(1)
				if got, d := time.Since(start), &b.Decisions[0]; got != want || d.Allowed != (answer == want) || d.Allowed == (d.Err != nil) {
					t.Errorf("ended after %v: %+v; want after %v, and an answer after %v", got, d, want, answer)
				}
				if i%7 == 0 && answer != want {
					panic("of a caller")
				}
			}
			s.Submit(b)
			time.Sleep(time.Duration(rng.IntN(2)) * ms) // memory of batches that have ended is used again
			if i%20 == 19 {
				time.Sleep(time.Second) // until none is in flight
			}
		}
		time.Sleep(time.Second)
		if ended.Load() != 500 || panics.Load() < 30 || flushes.Load() < 400 {
			t.Errorf("%d ended, %d panics, %d flushes; want ended 500, panics at least 30 and flushes at least 400", ended.Load(), panics.Load(), flushes.Load())
		}
	})
}

func TestDeadlineFailsOnlyUndecidedGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		routes := [2]stores.Route{{Store: after(ms, echo)}, {Store: batchFunc(func(*backend.Batch) { time.Sleep(time.Minute) })}}
		router := stores.NewRouter(func(group []backend.Charge) *stores.Route { return &routes[(group[0].Key[0]-'a')%2] }, nil)
		s := stores.Deadline(nil, router, 5*ms, ms, nil)
		done := make(chan struct{})
		b := &backend.Batch{
			Charges: costs(false, 1, 2, 3, 4), Decisions: make([]backend.Decision, 4), Known: make([]atomic.Bool, 4),
			Done: func(*backend.Batch) { close(done) },
		}
		start := time.Now()
		s.Submit(b)
		<-done
		if got := time.Since(start); got != 5*ms {
			t.Errorf("ended after %v; want %v", got, 5*ms)
		}
		for i, d := range b.Decisions {
			if decided := i%2 == 0; decided && (!d.Allowed || d.Remaining != int64(i+1)) || !decided && !errors.Is(d.Err, backend.ErrUnavailable) {
				t.Errorf("%d: got %+v; want %d remaining for even numbers, and backend.ErrUnavailable for odd ones", i, d, i+1)
			}
		}
		time.Sleep(time.Hour) // until the late batches have ended, too
	})
}

// Listeners write their answers when Flush is called, which must happen after all late batches have ended.
func TestAnswersAtTheDeadlineAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stores.Deadline(nil, submitFunc(func(*backend.Batch) {}), 10*ms, 0, nil)
		var ended, flushed atomic.Int32
		source := &backend.Source{Flush: func() {
			if ended.Load() == 3 {
				flushed.Add(1)
			}
		}}
		for range 3 {
			s.Submit(&backend.Batch{
				Charges: []backend.Charge{{Key: []byte("a")}}, Decisions: make([]backend.Decision, 1), Source: source,
				Done: func(*backend.Batch) { ended.Add(1) },
			})
		}
		time.Sleep(10 * ms)
		synctest.Wait()
		if ended.Load() != 3 || flushed.Load() == 0 {
			t.Errorf("%d of 3 batches ended at the deadline, and their answers were sent %d times; want all 3 ended, and their answers sent at least once", ended.Load(), flushed.Load())
		}
	})
}

func TestDeadlinePassesWaitsOn(t *testing.T) {
	var waits []bool
	next := observed{memory.New(memory.Config{}), func(b *backend.Batch) { waits = append(waits, b.Waits) }}
	s := stores.Deadline(nil, next, time.Second, 0, nil)
	take(t.Context(), s, of(tokens(t, 1, algorithms.Second, 3), "a", 1))
	b := backend.Batch{Charges: []backend.Charge{of(tokens(t, 1, algorithms.Second, 3), "b", 1)}, Decisions: make([]backend.Decision, 1), Done: func(*backend.Batch) {}}
	s.Submit(&b)
	if len(waits) != 2 || !waits[0] || waits[1] {
		t.Errorf("got %v, want true and then false", waits)
	}
}

// The Store may be setting the elements of Known while Deadline reads them.
func TestAHalfKnownGroupIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var inner *backend.Batch
		s := stores.Deadline(nil, submitFunc(func(b *backend.Batch) {
			inner = b
			b.Decisions[0].Allowed = true
			b.Known[0].Store(true)
		}), time.Second, 0, nil)
		charges := costs(true, 1, 2)
		b := &backend.Batch{Charges: charges, Decisions: make([]backend.Decision, 2), Known: make([]atomic.Bool, 2), Done: func(*backend.Batch) {}}
		s.Submit(b)
		if b.IsKnown(0) || b.IsKnown(1) {
			t.Errorf("known: %v, %v; want none", b.IsKnown(0), b.IsKnown(1))
		}
		inner.Decisions[1].Allowed = true
		inner.Done(inner)
		if !b.Decisions[0].Allowed || !b.Decisions[1].Allowed {
			t.Errorf("got %+v, want both allowed", b.Decisions)
		}
	})
}
