package backend_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

const ms = time.Millisecond

func TestWrappersChangeNoAnswer(t *testing.T) {
	wraps := map[string]func(backend.Taker) backend.Taker{
		"coalesce": func(s backend.Taker) backend.Taker {
			return backend.Coalesce(s, backend.CoalesceConfig{Timeout: time.Minute})
		},
		"one flight": func(s backend.Taker) backend.Taker {
			return backend.Coalesce(s, backend.CoalesceConfig{Flights: 1, MaxCharges: 3})
		},
		"breaker": func(s backend.Taker) backend.Taker { return backend.Breaker(s, 0, nil) },
		"deadline": func(s backend.Taker) backend.Taker {
			return backend.Blocking(backend.Deadline(backend.Async(s), time.Minute, ms, nil))
		},
		"all": func(s backend.Taker) backend.Taker {
			return backend.Blocking(backend.Deadline(backend.Async(backend.Coalesce(backend.Breaker(s, 0, nil), backend.CoalesceConfig{Timeout: time.Minute})), time.Minute, ms, nil))
		},
	}
	wraps["started"] = func(s backend.Taker) backend.Taker { return storetest.Started(wraps["coalesce"](s)) }
	wraps["all, started"] = func(s backend.Taker) backend.Taker { return storetest.Started(wraps["all"](s)) }
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) {
			storetest.Exact(t, func(_ *testing.T, now func() algorithms.Micros) backend.Taker {
				return wrap(memory.New(memory.Config{Clock: now}))
			})
		})
	}
}

func TestAnIdleStoreIsAskedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := &recorder{next: echo}
		s := backend.Coalesce(next, backend.CoalesceConfig{})
		start := time.Now()
		for n := range int64(3) {
			if d := take(t.Context(), s, costs(true, n)...); !d[0].Allowed || d[0].Remaining != n {
				t.Errorf("got %+v", d)
			}
		}
		if waited := time.Since(start); waited != 0 || next.count() != 3 {
			t.Errorf("waited %v in %d takes", waited, next.count())
		}
	})
}

func TestTakesUnderLoadRideTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := &recorder{next: after(ms, echo)}
		s := backend.Coalesce(next, backend.CoalesceConfig{Flights: 1})
		asks := [][]backend.Charge{
			costs(true, 1),
			costs(true, 2, 3),
			costs(false, 4, 5),
			append(costs(true, 6), costs(true, 7)...),
		}
		var wg sync.WaitGroup
		for _, charges := range asks {
			wg.Go(func() {
				for i, d := range take(t.Context(), s, charges...) {
					if !d.Allowed || d.Remaining != charges[i].Ask.Cost {
						t.Errorf("asked %d, got %+v", charges[i].Ask.Cost, d)
					}
				}
			})
			synctest.Wait() // the first is under way, the others wait in order
		}
		start := time.Now()
		wg.Wait()
		if waited := time.Since(start); waited != 2*ms || next.count() != 2 {
			t.Errorf("%d takes in %v", next.count(), waited)
		}
		// Groups stay apart, and stay together.
		got, groups := next.last(t), ""
		for i, c := range got {
			if i > 0 && c.Group != got[i-1].Group {
				groups += " "
			}
			groups += string(rune('0' + c.Ask.Cost))
		}
		if groups != "23 4 5 67" {
			t.Errorf("groups %q", groups)
		}
		seen := map[int]bool{}
		for i, c := range got {
			if (i == 0 || c.Group != got[i-1].Group) && seen[c.Group] {
				t.Errorf("group number %d is used twice", c.Group)
			}
			seen[c.Group] = true
		}
	})
}

func TestFlightsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var flying, most, largest atomic.Int64
		s := backend.Coalesce(storeFunc(func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
			if n := flying.Add(1); n > most.Load() {
				most.Store(n)
			}
			if n := int64(len(charges)); n > largest.Load() {
				largest.Store(n)
			}
			after(ms, echo).Take(ctx, charges, decisions)
			flying.Add(-1)
		}), backend.CoalesceConfig{Flights: 3, MaxCharges: 4})
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if d := take(t.Context(), s, costs(true, 1, 2)...); d[0].Err != nil || d[1].Remaining != 2 {
					t.Errorf("got %+v", d)
				}
			})
		}
		start := time.Now()
		wg.Wait()
		// 3 flights at once of 2 riders each, but that the first ones may leave with one alone.
		if waited := time.Since(start); most.Load() != 3 || largest.Load() != 4 || waited > 19*ms {
			t.Errorf("%d flights at once, up to %d charges each, %v", most.Load(), largest.Load(), waited)
		}
		if d := take(t.Context(), s, costs(true, 1, 2, 3, 4, 5, 6)...); d[5].Remaining != 6 {
			t.Errorf("a rider with more charges than a flight takes: %+v", d)
		}
	})
}

// A flight that is late holds up others for half of its time, and those that are enough for another not
// at all.
func TestALateFlightIsNotWaitedForForLong(t *testing.T) {
	for name, test := range map[string]struct {
		second int // charges of each of those who come second
		want   time.Duration
	}{
		"few":  {1, 6 * ms},
		"many": {4, ms},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				late := after(time.Hour, echo)
				next := &recorder{}
				next.next = storeFunc(func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
					if next.count() == 1 {
						late.Take(ctx, charges, decisions)
						return
					}
					after(ms, echo).Take(ctx, charges, decisions)
				})
				s := backend.Coalesce(next, backend.CoalesceConfig{Timeout: 10 * ms, MaxCharges: 8})
				start := time.Now()
				var wg sync.WaitGroup
				wg.Go(func() {
					if d := take(t.Context(), s, costs(true, 1)...); !errors.Is(d[0].Err, backend.ErrUnavailable) || time.Since(start) != 10*ms {
						t.Errorf("the late one: %+v after %v", d[0], time.Since(start))
					}
				})
				synctest.Wait()
				for range 2 {
					wg.Go(func() {
						d := take(t.Context(), s, costs(true, make([]int64, test.second)...)...)
						if got := time.Since(start); d[0].Err != nil || got != test.want {
							t.Errorf("%+v after %v, want %v", d[0], got, test.want)
						}
					})
				}
				wg.Wait()
				if next.count() != 2 {
					t.Errorf("%d takes", next.count())
				}
			})
		})
	}
}

func TestEachFlightHasATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := backend.Coalesce(after(time.Hour, echo), backend.CoalesceConfig{Timeout: 5 * ms})
		start := time.Now()
		d := take(t.Context(), s, costs(true, 1)...)
		if waited := time.Since(start); !errors.Is(d[0].Err, backend.ErrUnavailable) || waited != 5*ms {
			t.Errorf("%v after %v", d[0].Err, waited)
		}
	})
}

func TestATakeThatLeftIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := &recorder{next: after(10*ms, echo)}
		s := backend.Coalesce(next, backend.CoalesceConfig{Flights: 1})
		go take(t.Context(), s, costs(true, 1)...)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 4*ms)
		defer cancel()
		start := time.Now()
		d := take(ctx, s, costs(true, 2)...)
		if waited := time.Since(start); waited != 4*ms || !errors.Is(d[0].Err, backend.ErrUnavailable) || !errors.Is(d[0].Err, context.DeadlineExceeded) {
			t.Errorf("%v after %v", d[0].Err, waited)
		}
		take(t.Context(), s, costs(true, 3)...)
		if got := next.last(t); next.count() != 2 || len(got) != 1 || got[0].Ask.Cost != 3 {
			t.Errorf("%d takes, the last of %+v", next.count(), got)
		}
	})
}

func TestATakeWithoutTimeIsNotSent(t *testing.T) {
	next := &recorder{next: echo}
	s := backend.Coalesce(next, backend.CoalesceConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 1000 {
		if d := take(ctx, s, costs(true, 1)...); !errors.Is(d[0].Err, backend.ErrUnavailable) {
			t.Fatalf("got %+v", d)
		}
	}
	if n := next.count(); n != 0 {
		t.Errorf("%d of 1000 were sent", n)
	}
}

func TestATakeThatEndsUnderWayAnswersInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := &recorder{next: after(10*ms, echo)}
		s := backend.Coalesce(next, backend.CoalesceConfig{})
		ctx, cancel := context.WithTimeout(t.Context(), 4*ms)
		defer cancel()
		charges := costs(true, 7)
		start := time.Now()
		d := take(ctx, s, charges...)
		if waited := time.Since(start); waited != 4*ms || !errors.Is(d[0].Err, backend.ErrUnavailable) || next.count() != 1 {
			t.Errorf("%v after %v, %d takes", d[0].Err, waited, next.count())
		}
		before := d[0]
		time.Sleep(20 * ms)
		if d[0] != before {
			t.Errorf("the late answer was written: %+v", d[0])
		}
	})
}

// Under the race detector: callers reuse what they passed as soon as they have an answer, and some
// leave before it comes.
func TestLateAnswersTouchNobodysMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := backend.Coalesce(storeFunc(func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
			time.Sleep(time.Duration(rand.IntN(3)) * ms) // does not care for ctx
			for i, c := range charges {
				if want := strings.Repeat(string(rune('a'+c.Ask.Cost)), 20); string(c.Key) != want {
					t.Errorf("charge %d has the key %q", c.Ask.Cost, c.Key)
				}
				decisions[i] = backend.Decision{Decision: algorithms.Decision{Allowed: true, Remaining: c.Ask.Cost}}
			}
		}), backend.CoalesceConfig{Flights: 2, MaxCharges: 16, Timeout: 10 * ms})
		var answered, left atomic.Int64
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				charges := make([]backend.Charge, 3)
				decisions := make([]backend.Decision, 3)
				key := make([]byte, 20)
				for range 200 {
					n := 1 + rand.IntN(3)
					cost := rand.Int64N(26)
					copy(key, strings.Repeat(string(rune('a'+cost)), 20))
					for i := range n {
						charges[i] = backend.Charge{Key: key, Ask: algorithms.Ask{Cost: cost}, Group: rand.IntN(2)}
						decisions[i] = backend.Decision{}
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rand.IntN(5))*ms)
					s.Take(ctx, charges[:n], decisions[:n])
					cancel()
					for _, d := range decisions[:n] {
						switch {
						case errors.Is(d.Err, backend.ErrUnavailable):
							left.Add(1)
						case d.Err != nil || !d.Allowed || d.Remaining != cost:
							t.Errorf("asked %d, got %+v", cost, d)
						default:
							answered.Add(1)
						}
					}
				}
			})
		}
		wg.Wait()
		time.Sleep(10 * ms) // until those that nobody waits for are back
		if answered.Load() == 0 || left.Load() == 0 {
			t.Errorf("%d answered, %d left: one of them was not tried", answered.Load(), left.Load())
		}
	})
}

func TestWaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := &recorder{next: after(10*ms, echo)}
		s := backend.Coalesce(next, backend.CoalesceConfig{Flights: 1, MaxWaiting: 5})
		var wg sync.WaitGroup
		wg.Go(func() { take(t.Context(), s, costs(true, 1)...) })
		synctest.Wait()
		var refused atomic.Int64
		start := time.Now()
		for range 8 {
			wg.Go(func() {
				if d := take(t.Context(), s, costs(true, 1)...); errors.Is(d[0].Err, backend.ErrUnavailable) && time.Since(start) == 0 {
					refused.Add(1)
				}
			})
		}
		wg.Wait()
		if refused.Load() != 3 || len(next.last(t)) != 5 {
			t.Errorf("%d refused at once, %d went", refused.Load(), len(next.last(t)))
		}
	})
}

// started starts charges, and tells when they were answered.
func started(t *testing.T, s backend.Taker, charges ...backend.Charge) (decisions []backend.Decision, landed chan time.Duration) {
	t.Helper()
	decisions, landed = make([]backend.Decision, len(charges)), make(chan time.Duration, 1)
	begin := time.Now()
	if !s.(backend.Starter).Start(charges, decisions, func() { landed <- time.Since(begin) }) {
		t.Fatal("not started")
	}
	return decisions, landed
}

func TestWhatIsStartedRidesWithTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := &recorder{next: after(ms, echo)}
		s := backend.Coalesce(next, backend.CoalesceConfig{Timeout: 10 * ms})
		first, landed := started(t, s, costs(true, 1)...)
		synctest.Wait()
		second, landedSecond := started(t, s, costs(true, 2, 3)...)
		third := take(t.Context(), s, costs(false, 4, 5)...)
		if a, b := <-landed, <-landedSecond; a != ms || b != 2*ms || next.count() != 2 {
			t.Errorf("landed after %v and %v, %d takes", a, b, next.count())
		}
		for i, d := range slices.Concat(first, second, third) {
			if d.Err != nil || d.Remaining != int64(i+1) {
				t.Errorf("asked %d, got %+v", i+1, d)
			}
		}
	})
}

func TestWhatWasStartedIsNotSentLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := &recorder{next: storeFunc(func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
			time.Sleep(30 * ms) // whatever ctx says
			echo(ctx, charges, decisions)
		})}
		s := backend.Coalesce(next, backend.CoalesceConfig{Timeout: 10 * ms, Flights: 1})
		_, landed := started(t, s, costs(true, 1)...)
		synctest.Wait()
		late, landedLate := started(t, s, costs(true, 2)...)
		time.Sleep(25 * ms)
		fresh, landedFresh := started(t, s, costs(true, 3)...)
		if a, b, c := <-landed, <-landedLate, <-landedFresh; a != 30*ms || b != 30*ms || c != 35*ms {
			t.Errorf("after %v, %v and %v", a, b, c)
		}
		if !errors.Is(late[0].Err, backend.ErrUnavailable) || fresh[0].Remaining != 3 || next.count() != 2 || len(next.last(t)) != 1 {
			t.Errorf("%+v, %+v, %d takes", late, fresh, next.count())
		}
	})
}

func TestNoMoreIsStartedThanMayWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := backend.Coalesce(after(ms, echo), backend.CoalesceConfig{Timeout: 10 * ms, Flights: 1, MaxWaiting: 1})
		_, flying := started(t, s, costs(true, 1)...)
		synctest.Wait()
		_, waiting := started(t, s, costs(true, 2)...)
		if s.(backend.Starter).Start(costs(true, 3), make([]backend.Decision, 1), func() { t.Error("done") }) {
			t.Error("one too many")
		}
		<-flying
		<-waiting
	})
}

// TestManyRidersDoNotHoldUpTheNextFlight, however long it takes to tell them.
func TestManyRidersDoNotHoldUpTheNextFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := &recorder{next: after(ms, echo)}
		s := backend.Coalesce(next, backend.CoalesceConfig{Timeout: time.Minute}).(backend.Starter)
		var told sync.WaitGroup
		start := func(of int) {
			for range of {
				told.Add(1)
				if !s.Start(costs(true, 1), make([]backend.Decision, 1), func() { time.Sleep(time.Second); told.Done() }) {
					t.Error("not started")
				}
			}
		}
		start(1)
		synctest.Wait()
		start(20) // wait for the first, and then for who asked it to be told
		time.Sleep(time.Second + ms/2)
		if n := next.count(); n != 1 {
			t.Errorf("%d takes", n)
		}
		time.Sleep(2 * ms)
		start(1)
		time.Sleep(2 * ms)
		if n := next.count(); n != 3 {
			t.Errorf("%d takes", n)
		}
		told.Wait()
	})
}

// TestAPanicEndsNoFlightForGood, of the Store or of a caller: the process goes on, others get their answers, and
// the next flight leaves.
func TestAPanicEndsNoFlightForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var panics []any
		broken := true
		s := backend.Coalesce(storeFunc(func(_ context.Context, charges []backend.Charge, decisions []backend.Decision) {
			time.Sleep(ms)
			if broken {
				panic("the store")
			}
			for i := range charges {
				decisions[i].Allowed = true
			}
		}), backend.CoalesceConfig{Flights: 1, Panicked: func(value any) { panics = append(panics, value) }})
		ask := func(done func()) []backend.Decision {
			decisions := make([]backend.Decision, 1)
			if !backend.Start(s, costs(true, 1), decisions, done) {
				t.Fatal("not started")
			}
			return decisions
		}
		for range 3 {
			told := 0
			first, second := ask(func() { told++ }), ask(func() { told++ })
			time.Sleep(time.Second)
			synctest.Wait()
			for _, d := range [][]backend.Decision{first, second} {
				if !errors.Is(d[0].Err, backend.ErrUnavailable) || d[0].Allowed {
					t.Errorf("%+v", d)
				}
			}
			if told != 2 {
				t.Errorf("%d were told", told)
			}
		}
		broken = false
		told := false
		ask(func() { panic("first") }) // flies alone; the next two together
		ask(func() { panic("second") })
		d := ask(func() { told = true })
		time.Sleep(time.Second)
		synctest.Wait()
		if !told || !d[0].Allowed || d[0].Err != nil {
			t.Errorf("told %t: %+v", told, d)
		}
		if n := len(panics); n < 5 || panics[n-2] != "first" || panics[n-1] != "second" {
			t.Errorf("reported: %v", panics)
		}
		if d := take(t.Context(), s, costs(true, 1)...); !d[0].Allowed {
			t.Errorf("%+v", d)
		}
	})
}
