package stores_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

func newLease() (s *stores.CacheStore, below backend.Store, calls *recorder) {
	below = memory.New(memory.Config{Clock: storetest.Times(wall)})
	calls = &recorder{next: below}
	return stores.Cache(calls, stores.CacheConfig{}), below, calls
}

func leased(limit *algorithms.Limit, key string, cost, maxUnits int64) backend.Charge {
	c := of(limit, key, cost)
	c.Lease = &algorithms.Lease{Most: maxUnits, For: 250_000}
	return c
}

func fixed(tb testing.TB, rate int64, period algorithms.Micros) *algorithms.Limit {
	tb.Helper()
	return compile(tb, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: rate, Period: period, Start: new(algorithms.Micros)})
}

// warm submits c every ms until a lease has been granted. It returns the number of charges.
func warm(t *testing.T, s *stores.CacheStore, c backend.Charge) (requests int64) {
	t.Helper()
	for s.Stats().Leased == 0 {
		if requests++; requests > 100 {
			t.Fatal("no lease was granted for 100 requests")
		}
		if d := take(t.Context(), s, c)[0]; !d.Allowed {
			t.Fatalf("request %d was denied: %+v; want it allowed", requests, d)
		}
		time.Sleep(ms)
	}
	return requests
}

func left(t *testing.T, below backend.Store, c backend.Charge) int64 {
	t.Helper()
	c.Terms.Cost, c.Lease = 0, nil
	return take(t.Context(), below, c)[0].Remaining
}

func TestAHotKeyIsServedFromLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, calls := newLease()
		exact := memory.New(memory.Config{Clock: storetest.Times(wall)})
		c := leased(compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1_000_000, Period: algorithms.Day}), "a", 1, 50_000)
		c.Terms.Hash = 1 << 63 // the windows start at noon
		for i := range 100_000 {
			got, want := take(t.Context(), s, c)[0], take(t.Context(), exact, c)[0]
			if got.Decision != want.Decision || got.Err != nil || got.At > want.At {
				t.Fatalf("request %d: got %+v, want %+v", i, got, want)
			}
			time.Sleep(10 * time.Microsecond)
		}
		// 8 charges make the key hot; then leases grow until they last for half of 250 ms.
		if n := calls.count(); n > 30 {
			t.Errorf("next got %d batches for 100,000 requests in 1 s; want at most 30", n)
		}
		if stats := s.Stats(); stats.Served < 99_000 || stats.Keys != 1 {
			t.Errorf("got %+v; want served at least 99_000 and keys 1", stats)
		}
	})
}

// The wrapped Store answers 40 ms late, which is a third of the time in which a lease is used up. A request
// for a hot key waits for the wrapped Store only when a window starts.
func TestNoRequestWaitsForTheNextLease(t *testing.T) {
	for name, spec := range map[string]algorithms.Spec{
		"day":          {Kind: algorithms.FixedWindow, Rate: 1_000_000, Period: algorithms.Day, Start: new(algorithms.Micros)},
		"second":       {Kind: algorithms.FixedWindow, Rate: 20_000, Period: algorithms.Second, Start: new(algorithms.Micros)},
		"token bucket": {Kind: algorithms.TokenBucket, Rate: 10_000, Period: algorithms.Second},
	} {
		for _, every := range []time.Duration{200 * time.Microsecond, 3 * ms, 20 * ms} {
			t.Run(fmt.Sprint(name, ", a request every ", every), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const late, from = 40 * ms, 500 * ms
					began := time.Now()
					store := memory.New(memory.Config{Clock: storetest.Times(wall)})
					s := stores.Cache(storeFunc(func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
						if time.Since(began) > from {
							time.Sleep(late)
						}
						backend.Take(ctx, store, charges, decisions)
					}), stores.CacheConfig{})
					limit := compile(t, spec)
					c := leased(limit, "a", 1, limit.Capacity/5)
					starts := func(at time.Time) bool { // reports whether a window starts at that time, or started recently
						window := time.Duration(spec.Period) * time.Microsecond
						return limit.Kind == algorithms.FixedWindow && at.Sub(at.Truncate(window)) <= 2*late
					}
					pause := every
					for ; time.Since(began) < 6*time.Second; time.Sleep(pause) {
						if time.Since(began) > 3*time.Second { // from now on a lease expires before its units are used up
							pause = 4 * every
						}
						start := time.Now()
						d := take(t.Context(), s, c)[0]
						if d.Err != nil || !d.Allowed {
							t.Fatalf("after %v: %+v; want no error and allowed", start.Sub(began), d)
						}
						if time.Since(start) > 0 && !starts(time.Now()) {
							t.Fatalf("a request waited for next, %v after the first; want it answered from the lease: %+v", start.Sub(began), s.Stats())
						}
					}
					s.Close()
				})
			})
		}
	}
}

// A process with more requests leases more units. Near the end of a window it leases only the units that it
// will need in the rest of the window.
func TestLeasesFollowTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, below, calls := newLease()
		c := leased(fixed(t, 1_000_000, algorithms.Day), "a", 1, 50_000)
		for _, every := range []time.Duration{ms, ms / 10, ms / 2, 5 * ms, 15 * ms} {
			start, used := calls.count(), left(t, below, c)
			const length = 2 * time.Second
			for began := time.Now(); time.Since(began) < length; time.Sleep(every) {
				take(t.Context(), s, c)
			}
			requests := int64(length / every)
			half := int64(125 * ms / every) // the units needed for half of 250 ms
			if granted := s.Stats().Leased; granted > 2*half {
				t.Errorf("a request every %v: %d units are granted, half the duration of a lease needs %d; want at most %v", every, granted, half, 2*half)
			}
			if n := calls.count() - start; n > 50 {
				t.Errorf("a request every %v: next got %d batches in 2 s; want at most 50", every, n)
			}
			if used -= left(t, below, c); used > requests+2*half {
				t.Errorf("a request every %v: %d units were charged for %d requests; want at most %v", every, used, requests, requests+2*half)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s, below, _ := newLease()
		c := leased(fixed(t, 10_000, algorithms.Second), "a", 1, 5000)
		for range 3 {
			requests := int64(0)
			for end := time.Now().Truncate(time.Second).Add(time.Second); time.Now().Before(end.Add(-ms)); time.Sleep(ms) {
				take(t.Context(), s, c)
				requests++
			}
			if rest := left(t, below, c); rest < 10_000-requests-20 {
				t.Errorf("at the end of the window: %d units requested, %d charged; want at most %d", requests, 10_000-rest, requests+20)
			}
			time.Sleep(ms)
		}
	})
}

// Lease.Most bounds all units that are leased to a process, including those in flight.
func TestLeasedUnitsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, late = 50, 20 * ms
		store := memory.New(memory.Config{Clock: storetest.Times(wall)})
		var n atomic.Int64
		s := stores.Cache(storeFunc(func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
			time.Sleep(time.Duration(n.Add(1)%7) * time.Microsecond) // consecutive requests do not arrive at the same time
			backend.Take(ctx, store, charges, decisions)
			if time.Sleep(late); detached(ctx) { // older answers arrive after newer ones
				time.Sleep(2 * late)
			}
		}), stores.CacheConfig{})
		c := leased(fixed(t, 1_000_000, algorithms.Day), "a", 1, most)
		reached, still := int64(0), false
		for i := range int64(3000) {
			start := time.Now()
			d := take(t.Context(), s, c)[0]
			if !d.Allowed {
				t.Fatalf("denied: %+v; want it allowed", d)
			}
			was := still && time.Now().Equal(start)
			still = 1_000_000-left(t, store, c)-(i+1) == s.Stats().Leased // no charge is in flight
			if was && still && d.Remaining != 1_000_000-(i+1) {
				t.Fatalf("request %d: the answer says that %d remain; want %v remaining", i, d.Remaining, 1_000_000-(i+1))
			}
			time.Sleep(ms / 2 * time.Duration(i/100%3)) // some of the requests arrive too fast to request the next lease in time
			granted := 1_000_000 - left(t, store, c) - (i + 1)
			if reached = max(reached, granted); granted > most {
				t.Fatalf("request %d: %d units are charged and not used; want at most %v", i, granted, most)
			}
		}
		if reached < most {
			t.Errorf("at most %d units were leased at a time, want %d", reached, most)
		}
		s.Close()
	})
}

// The clock of this process is slower than that of the wrapped Store. Leased units must not be used after the
// lease has expired by the clock of the wrapped Store, nor in another window.
func TestLeasesEndInTimeWithASlowClock(t *testing.T) {
	for _, limit := range []*algorithms.Limit{fixed(t, 1_000_000, 60*algorithms.Second), tokens(t, 1, algorithms.Second, 1_000_000)} {
		t.Run(limit.Kind.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				born := time.Now()
				calls := &recorder{next: memory.New(memory.Config{Clock: storetest.Times(wall)})}
				s := stores.Cache(calls, stores.CacheConfig{Clocks: func() (monotonic, wall time.Duration) { // 500 ppm slow
					slow := time.Since(born) * 9995 / 10_000
					return slow, slow
				}})
				c := leased(limit, "a", 1, 50_000)
				c.Lease.For = 40 * algorithms.Second // longer than the rest of the window
				time.Sleep(30 * time.Second)
				warm(t, s, c)
				end := time.UnixMicro(int64(calls.at(calls.count()-1) + c.Lease.For))
				if limit.Kind == algorithms.FixedWindow {
					end = end.Truncate(time.Minute)
				}
				time.Sleep(time.Until(end))
				n := calls.count()
				if take(t.Context(), s, c); calls.count() == n {
					t.Errorf("served from a lease at its end: %+v", s.Stats())
				}
			})
		})
	}
}

// While a machine is suspended, its monotonic clock and its timers stand still. It must not serve leased units of a
// window that has ended, even if its wall clock was set before.
func TestALeaseEndsWhileTheMachineIsSuspended(t *testing.T) {
	for _, set := range []time.Duration{0, -time.Hour, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var wallAhead, suspended atomic.Int64 // in ns
			store := memory.New(memory.Config{Clock: func() time.Time { return time.Now().Add(time.Duration(suspended.Load())) }})
			s := stores.Cache(store, stores.CacheConfig{Clocks: func() (monotonic, wall time.Duration) {
				return time.Since(began), time.Since(began) + time.Duration(wallAhead.Load()+suspended.Load())
			}})
			wallAhead.Store(int64(set))
			limit := fixed(t, 1000, 10*algorithms.Second)
			c := leased(limit, "a", 1, 500)
			warm(t, s, c)
			suspended.Store(int64(10 * time.Second)) // the next window has started
			take(t.Context(), store, of(limit, "a", limit.Capacity))
			if d := take(t.Context(), s, c)[0]; d.Allowed {
				t.Errorf("the wall clock was set by %v, and a unit of the previous window was served: %+v; want denied", set, d)
			}
		})
	}
}

// A request may be denied because units are leased or in flight. It is allowed when the units have been
// returned or have arrived, even if a store below caches denials.
func TestADenialEndsWhenUnitsAreReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Config{Clock: storetest.Times(wall)})
		s := stores.Cache(store, stores.CacheConfig{})
		spec := algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1000, Period: algorithms.Day, Start: new(algorithms.Micros), MaxReserved: new(int64)}
		c := leased(compile(t, spec), "a", 1, 500)
		requests := warm(t, s, c)
		all := c
		all.Terms = algorithms.Charge{Cost: 1000 - requests, Reserve: true} // the wrapped Store decides reservations, whatever is leased
		if d := take(t.Context(), s, all)[0]; d.Allowed {
			t.Fatalf("leased units were available in next: %+v; want denied", d)
		}
		if d := take(t.Context(), s, c)[0]; !d.Allowed {
			t.Errorf("leased units are not available: %+v; want allowed", d)
		}
		all.Terms.Cost--
		time.Sleep(350 * ms)
		if d := take(t.Context(), s, all)[0]; !d.Allowed {
			t.Errorf("no units are leased, %d are left: %+v; want allowed", left(t, store, c), d)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Config{Clock: storetest.Times(wall)})
		s := stores.Cache(storeFunc(func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
			backend.Take(ctx, store, charges, decisions)
			if detached(ctx) {
				time.Sleep(30 * ms)
			}
		}), stores.CacheConfig{})
		c := leased(fixed(t, 1000, algorithms.Day), "a", 1, 500)
		requests := warm(t, s, c)
		for rest := left(t, store, c); rest > 1000-requests-40 && left(t, store, c) == rest; requests++ { // until the next lease is in flight
			take(t.Context(), s, c)
			synctest.Wait()
		}
		all := c
		all.Terms.Cost = 1000 - requests
		if d := take(t.Context(), s, all)[0]; d.Allowed {
			t.Errorf("units in flight were available: %+v; want denied", d)
		}
		time.Sleep(31 * ms)
		if d := take(t.Context(), s, all)[0]; !d.Allowed {
			t.Errorf("the units in flight have arrived, want allowed: %+v", d)
		}
	})
}

// Units that are requested while the wrapped Store fails may have been charged. So fewer units are requested, and
// less often.
func TestLeasesRequestFewerUnitsDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		store := memory.New(memory.Config{Clock: storetest.Times(wall)})
		calls := &recorder{next: storeFunc(func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
			if backend.Take(ctx, store, charges, decisions); down.Load() { // the units are charged, and the answer is lost
				fail(decisions)
			}
		})}
		s := stores.Cache(calls, stores.CacheConfig{})
		c := leased(fixed(t, 1_000_000, algorithms.Day), "a", 1, 50_000)
		for range 1000 {
			take(t.Context(), s, c)
			time.Sleep(ms)
		}
		down.Store(true)
		start, before, used := calls.count(), left(t, store, c), s.Stats().Leased
		for s.Stats().Leased > 0 {
			take(t.Context(), s, c)
			time.Sleep(ms / 2)
		}
		lost := before - left(t, store, c)
		if n := calls.count() - start; n < 2 || n > 12 || lost > 2*used {
			t.Errorf("%d batches, %d units were charged while the last %d were used; want 2 to 12 batches, and at most %v units", n, lost, used, 2*used)
		}
	})
}

// A lease that is refused denies no request. A group with a bucket that a denial changes is sent once.
func TestALeaseIsRequestedAfterItsRequest(t *testing.T) {
	hundred := int64(100)
	for name, spec := range map[string]algorithms.Spec{
		"overdraw": {Kind: algorithms.TokenBucket, Rate: 100, Period: algorithms.Day, Overdraw: true},
		"penalty": {Kind: algorithms.TokenBucket, Rate: 100, Period: algorithms.Day, Capacity: &hundred,
			Penalty: &algorithms.Penalty{After: 2, For: 60 * algorithms.Second, Max: 60 * algorithms.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, below, calls := newLease()
				beside := of(compile(t, spec), "beside", 1)
				c := leased(fixed(t, 1000, algorithms.Day), "a", 1, 500)
				warm(t, s, c)
				time.Sleep(300 * ms) // the lease expires, and the key stays hot
				if s.ReturnUnits(); s.Stats().Leased != 0 || s.Stats().Keys != 1 {
					t.Fatalf("got %+v; want no leased units and one hot key", s.Stats())
				}
				// Another sidecar consumes all units but one. This sidecar does not know that.
				take(t.Context(), below, of(c.Limit, "a", left(t, below, c)-1))
				from := calls.count()
				if d := take(t.Context(), s, c, beside); !d[0].Allowed || !d[1].Allowed {
					t.Fatalf("both have one unit left, want allowed: %+v", d)
				}
				last := calls.all()[from:]
				if len(last) != 2 || len(last[0]) != 2 || last[0][0].Terms.Cost != 1 || len(last[1]) != 1 || last[1][0].Terms.Cost <= 1 || s.Stats().Leased != 0 {
					t.Errorf("next got %+v, %d units are leased; want both charges with cost 1, and then a lease, which is refused", last, s.Stats().Leased)
				}
				if n := left(t, below, beside); n != 99 {
					t.Errorf("%d of 100 are left; want 99", n)
				}
			})
		})
	}
}

// A group is denied after other requests have used up its lease. Its units are returned to the wrapped Store with the
// time of their own lease, and are not added to another lease.
func TestReturnedUnitsAreRefundedAtTheTimeOfTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Config{Clock: storetest.Times(wall)})
		calls := &recorder{next: storeFunc(func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
			if backend.Take(ctx, store, charges, decisions); string(charges[0].Key) == "other" {
				time.Sleep(100 * ms)
			}
		})}
		s := stores.Cache(calls, stores.CacheConfig{})
		hot := leased(fixed(t, 10_000, algorithms.Day), "hot", 1, 500)
		none := of(fixed(t, 1, algorithms.Day), "other", 1)
		take(t.Context(), store, none)
		warm(t, s, hot)
		of := calls.at(calls.count() - 1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			ctx, cancel := context.WithTimeout(t.Context(), 200*ms)
			defer cancel()
			take(ctx, s, hot, none)
		}()
		synctest.Wait()
		for range 80 { // the requests use up the lease, and the next lease begins
			take(t.Context(), s, hot)
			time.Sleep(ms)
		}
		<-done
		s.ReturnUnits()
		for _, take := range calls.all() {
			for _, c := range take {
				if c.Terms.Cost == -1 && c.Terms.ChargedAt == of {
					return
				}
			}
		}
		t.Errorf("next got no refund of the denied group's unit with the time of its lease: %+v", s.Stats())
	})
}

func TestALeaseIsRestoredWhereAnotherLimitDenies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, calls := newLease()
		hot := leased(fixed(t, 10_000, algorithms.Day), "hot", 1, 500)
		other := of(fixed(t, 1, algorithms.Day), "other", 1)
		requests := warm(t, s, hot)
		ctx, cancel := context.WithTimeout(t.Context(), 5*ms)
		defer cancel()
		granted, served := s.Stats().Leased, s.Stats().Served
		got := take(ctx, s, hot, other)
		if n := s.Stats().Served - served; n != 1 {
			t.Errorf("%d charges are counted as served from leases; want 1", n)
		}
		if !got[0].Allowed || !got[1].Allowed || got[0].Remaining != 10_000-requests-1 || s.Stats().Leased != granted-1 {
			t.Errorf("both buckets have enough: %+v, %d of %d granted units are left; want both allowed, %d remaining in the first, and %d granted units left", got, s.Stats().Leased, granted, 10_000-requests-1, granted-1)
		}
		if last := calls.last(t); len(last) != 1 || string(last[0].Key) != "other" {
			t.Errorf("next got %+v; want one charge, of the key %q", last, "other")
		}
		got = take(ctx, s, hot, other)
		if !got[0].Allowed || got[1].Allowed || got[1].RetryAfter == 0 || got[0].Remaining != 10_000-requests-1 || s.Stats().Leased != granted-1 {
			t.Errorf("the other has nothing left: %+v, %d units are leased; want the first allowed with %d remaining, the second denied with a retry time, and %d leased", got, s.Stats().Leased, 10_000-requests-1, granted-1)
		}
	})
}

// A decision of the wrapped Store may take longer than a lease lasts, if the deadline of the group is later, or if it has
// none. Such a group uses no leased units.
func TestALeaseThatMayEndIsNotUsedInAGroup(t *testing.T) {
	for _, deadline := range []time.Duration{250 * ms, 0} {
		synctest.Test(t, func(t *testing.T) {
			s, _, calls := newLease()
			hot := leased(fixed(t, 10_000, algorithms.Day), "hot", 1, 500)
			other := of(fixed(t, 100, algorithms.Day), "other", 1)
			requests := warm(t, s, hot)
			ctx := context.Background()
			if deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, deadline)
				defer cancel()
			}
			before := calls.count()
			got := take(ctx, s, hot, other)
			if !got[0].Allowed || !got[1].Allowed || got[0].Remaining != 10_000-requests-1 {
				t.Errorf("deadline %v: got %+v; want both allowed, and %d remaining in the first", deadline, got, 10_000-requests-1)
			}
			// Unused units are returned first, in the same batch.
			is := calls.all()[before:]
			if len(is) != 2 || len(is[0]) != 3 || is[0][0].Terms.Cost >= 0 || string(is[0][1].Key) != "hot" || string(is[0][2].Key) != "other" || is[1][0].Terms.Cost <= 1 {
				t.Errorf("deadline %v: next got %+v; want a refund with both charges, and then the next lease", deadline, is)
			}
		})
	}
}

func TestLeasesOutliveAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		store := memory.New(memory.Config{Clock: storetest.Times(wall)})
		s := stores.Cache(failsWhile(&down, store), stores.CacheConfig{})
		c := leased(fixed(t, 10_000, algorithms.Day), "a", 1, 500)
		warm(t, s, c)
		began := time.Now().Add(-ms)
		down.Store(true)
		served := 0
		for time.Since(began) < 240*ms {
			if s.Stats().Leased > 0 {
				if d := take(t.Context(), s, c)[0]; !d.Allowed {
					t.Fatalf("after %v: %+v; want allowed", time.Since(began), d)
				}
				served++
			}
			time.Sleep(20 * ms)
		}
		time.Sleep(20 * ms)
		if d := take(t.Context(), s, c)[0]; d.Err == nil || d.Allowed || served < 5 {
			t.Errorf("after %v and %d served: %+v; want an error, denied and served at least 5", time.Since(began), served, d)
		}
		down.Store(false)
		if d := take(t.Context(), s, c)[0]; d.Err != nil || !d.Allowed {
			t.Errorf("next works again, want allowed: %+v", d)
		}
	})
}

func TestChangedNumbersDropLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, calls := newLease()
		c := leased(fixed(t, 10_000, algorithms.Day), "a", 1, 500)
		warm(t, s, c)
		n, granted := calls.count(), s.Stats().Leased
		c = leased(fixed(t, 10_000, algorithms.Day), "a", 1, 500)
		if take(t.Context(), s, c); calls.count() != n || s.Stats().Leased != granted-1 {
			t.Errorf("the same numbers: next got %d batches, %+v; want no batch and %d leased units", calls.count()-n, s.Stats(), granted-1)
		}
		c.Limit = fixed(t, 9_000, algorithms.Day)
		if take(t.Context(), s, c); calls.count() != n+1 || s.Stats().Leased != 0 {
			t.Errorf("other numbers: next got %d batches, %+v; want 1 batch and no leased units", calls.count()-n, s.Stats())
		}
	})
}

// lateAhead is a Store that answers requests for a lease in the background late. The batches of such requests are
// Detached, and no goroutine waits for them in Submit.
type lateAhead struct{ *memory.Store }

func (s lateAhead) Submit(b *backend.Batch) {
	if !b.Detached || b.Waits {
		s.Store.Submit(b)
		return
	}
	time.AfterFunc(40*ms, func() { s.Store.Submit(b) })
}

// A reset is sent after the leases in flight, whether they are granted late or fail. So neither their grant nor the return
// of their units changes the new bucket.
func TestResetWaitsForLeasesInFlight(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New(memory.Config{Clock: storetest.Times(wall)})
			var next backend.Store = lateAhead{store}
			failing := &aheadFails{Store: store, pause: 20 * ms}
			if fails {
				next = failing
			}
			s := stores.Cache(next, stores.CacheConfig{})
			c := leased(fixed(t, 10_000, algorithms.Day), "a", 1, 500)
			requests := warm(t, s, c)
			failing.down.Store(true)
			for range requests * 30 {
				take(t.Context(), s, c)
			}
			began := time.Now()
			if err := backend.ResetBucket(t.Context(), s, c); err != nil {
				t.Fatal(err)
			}
			if time.Since(began) == 0 {
				t.Fatal("no lease was in flight")
			}
			if rest := left(t, store, c); rest != 10_000 {
				t.Errorf("the lease fails %t: %d are left; want 10_000", fails, rest)
			}
			s.Close()
			if rest := left(t, store, c); rest != 10_000 {
				t.Errorf("the lease fails %t: %d are left in the end; want 10_000", fails, rest)
			}
		})
	}
}

// If Close did not wait, the units would be lost when the process ends.
func TestCloseWaitsForUnitsThatAreBeingReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Config{Clock: storetest.Times(wall)})
		returning := make(chan struct{}, 1)
		s := stores.Cache(storeFunc(func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
			if charges[0].Terms.Cost < 0 {
				returning <- struct{}{}
				time.Sleep(100 * ms)
			}
			backend.Take(ctx, store, charges, decisions)
		}), stores.CacheConfig{})
		c := leased(fixed(t, 10_000, algorithms.Day), "a", 1, 500)
		requests := warm(t, s, c)
		<-returning // the lease has expired
		s.Close()
		if n := left(t, store, c); n != 10_000-requests {
			t.Errorf("%d units are left of 10,000 after %d requests; want %v", n, requests, 10_000-requests)
		}
	})
}

func TestOnlyPlainChargesAreLeased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, calls := newLease()
		c := leased(tokens(t, 10_000, algorithms.Day, 10_000), "a", 1, 500)
		warm(t, s, c)
		granted := s.Stats().Leased
		for _, a := range []algorithms.Charge{{Cost: 0}, {Cost: -1}, {Cost: 1, DryRun: true}, {Cost: 1, Reserve: true}} {
			n := calls.count()
			c.Terms = a
			if d := take(t.Context(), s, c)[0]; !d.Allowed || calls.count() != n+1 || calls.last(t)[0].Terms != a || s.Stats().Leased != granted {
				t.Errorf("%+v: %+v, next got %+v, %d units are leased; want allowed by one batch of next with the same terms, and %d leased", a, d, calls.last(t), s.Stats().Leased, granted)
			}
		}
		c.Terms = algorithms.Charge{Cost: 1}
		c.IdempotencyKey = &backend.IdempotencyKey{ID: [16]byte{1}, Lifetime: algorithms.Second}
		for range 2 {
			n := calls.count()
			if d := take(t.Context(), s, c)[0]; !d.Allowed || calls.count() != n+1 || s.Stats().Leased != granted {
				t.Errorf("with an idempotency key: %+v, next got %d batches; want allowed, 1 batch and %d leased units", d, calls.count()-n, granted)
			}
		}
	})
}

func TestLeaseIsBounded(t *testing.T) {
	storetest.Bounded(t, 20, func(t *testing.T, now func() algorithms.Micros) backend.Store {
		t.Helper()
		s := stores.Cache(memory.New(memory.Config{Clock: storetest.Times(now)}), stores.CacheConfig{})
		return s
	})
}

// Callers such as listeners reuse the memory of their keys.
func TestAHotKeyHasItsOwnMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, below, calls := newLease()
		c := leased(fixed(t, 10_000, algorithms.Day), "a", 1, 500)
		warm(t, s, c)
		copy(c.Key, "b")
		time.Sleep(400 * ms) // the lease expires, and its units are returned
		for _, charges := range calls.all() {
			for i := range charges {
				if string(charges[i].Key) != "a" {
					t.Errorf("%d were charged to %q; want %q", charges[i].Terms.Cost, charges[i].Key, "a")
				}
			}
		}
		if is := left(t, below, leased(c.Limit, "b", 0, 500)); is != 10_000 {
			t.Errorf("%d of 10000 are left of another key; want 10000", is)
		}
	})
}

// A lease of a sharded bucket does not record from which shard its units came. Any shard may have been full
// since. Therefore no shard gets units back.
func TestATokenBucketWithShardsGetsNoUnitsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, calls := newLease()
		c := leased(tokens(t, 10_000, 3600*algorithms.Second, 10_000), "a", 1, 500)
		c.Shards = make([]algorithms.Limit, 2)
		warm(t, s, c)
		time.Sleep(400 * ms)
		for _, charges := range calls.all() {
			for i := range charges {
				if charges[i].Terms.Cost < 0 {
					t.Errorf("%d units were returned, want 0", -charges[i].Terms.Cost)
				}
			}
		}
		if stats := s.Stats(); stats.Granted == 0 || stats.Leased != 0 {
			t.Errorf("%+v: want leases that expired", stats)
		}
	})
}

func TestKeysWithLeasesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below := memory.New(memory.Config{Clock: storetest.Times(wall)})
		s := stores.Cache(below, stores.CacheConfig{MaxKeys: 128})
		limit := fixed(t, 10_000, algorithms.Day)
		for range 20 {
			for key := range 1000 {
				take(t.Context(), s, leased(limit, fmt.Sprint("key", key), 1, 500))
			}
		}
		if keys := s.Stats().Keys; keys < 64 || keys > 128 {
			t.Errorf("%d keys are hot; want 64 to 128", keys)
		}
	})
}

func TestUnusedUnitsAreReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, below, _ := newLease()
		c := leased(fixed(t, 10_000, algorithms.Day), "a", 1, 500)
		requests := warm(t, s, c)
		if granted := s.Stats().Leased; left(t, below, c) != 10_000-requests-granted {
			t.Errorf("%d of 10000 were requested, %d are leased and %d are left; want a sum of 10000", requests, granted, left(t, below, c))
		}
		if s.ClearBucket(c.Key); s.Stats().Leased != 0 || left(t, below, c) != 10_000-requests {
			t.Errorf("after ClearBucket %d are left: %+v; want all others, and none leased", left(t, below, c), s.Stats())
		}
		requests += warm(t, s, c)
		time.Sleep(400 * ms)
		if stats := s.Stats(); stats.Leased != 0 || left(t, below, c) != 10_000-requests {
			t.Errorf("%d of 10000 were used, %d are left: %+v; want all others left, and none leased", requests, left(t, below, c), stats)
		}
		time.Sleep(2 * time.Second)
		if stats := s.Stats(); stats.Keys != 0 || stats.Granted == 0 || stats.Granted != stats.Returned+stats.Served {
			t.Errorf("after all requests have ended: %+v; want no keys, and Granted = Returned + Served above 0", stats)
		}
	})
}
