package storetest

import (
	"errors"
	"sync"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func withID(id byte, charges ...backend.Charge) []backend.Charge {
	o := &backend.IdempotencyKey{ID: [16]byte{id}, Lifetime: 10 * minute}
	for i := range charges {
		o.Digest[0] += byte(charges[i].Terms.Cost) + charges[i].Key[0]
		charges[i].IdempotencyKey, charges[i].Group = o, 0
	}
	return charges
}

const minute = 60 * algorithms.Second

func takesOnce(t *testing.T, clock *Clock, store backend.Store) {
	t.Helper()
	a := token(2, minute, 2)
	a.Key = []byte("once a")

	first := take(store, withID(1, a)...)
	clock.Set(Start + algorithms.Second)
	for range 2 {
		again := take(store, withID(1, a)...)
		if want := first[0]; !again[0].Replayed || again[0].At != Start || again[0].Decision != want.Decision {
			t.Errorf("repeated: got %+v, want the first decision, %+v", again[0], want)
		}
	}
	expect(t, store, a, 0, true, 1, 0)

	more := a
	more.Terms.Cost = 2
	if d := take(store, withID(1, more)...); !errors.Is(d[0].Err, backend.ErrReused) {
		t.Errorf("the id of another group, want ErrReused: got %+v", d[0])
	}
	if d := take(store, withID(2, more)...); d[0].Allowed || d[0].RetryAfter == 0 {
		t.Errorf("2 units where 1 is left: got %+v, want a denial with RetryAfter", d[0])
	}
	clock.Set(Start + 30*algorithms.Second)
	if d := take(store, withID(2, more)...); !d[0].Allowed || d[0].Replayed {
		t.Errorf("a denial must not be stored: got %+v, want a new decision that allows", d[0])
	}

	day := charge(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Calendar: calendars[0]})
	day.Key = []byte("once a day")
	first = take(store, withID(6, day)...)
	clock.Set(clock.Now() + minute)
	if d := take(store, withID(6, day)...); !first[0].Allowed || !d[0].Replayed || d[0].Decision != first[0].Decision {
		t.Errorf("of a calendar: first %+v, again %+v; want allowed, and the same decision replayed", first[0], d[0])
	}

	full := window(1000, algorithms.Day)
	full.Key = []byte("once crowd")
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for id := range byte(20) {
				if d := take(store, withID(100+id, full)...); !d[0].Allowed {
					t.Errorf("id %d: got %+v, want allowed", 100+id, d[0])
				}
			}
		})
	}
	wg.Wait()
	expect(t, store, full, 0, true, 980, 0)
}

// The two buckets have different Slots, so each is settled by a group of its own.
func settles(t *testing.T, clock *Clock, store backend.Store) {
	t.Helper()
	const s = algorithms.Second
	daily := charge(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1000, Period: algorithms.Day, Start: new(algorithms.Micros), Settles: true})
	perMinute := charge(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 100, Period: minute, Settles: true})
	daily.Key, perMinute.Key, daily.Slot, perMinute.Slot = []byte("daily"), []byte("per minute"), 1, 2
	of := clock.Now()
	for _, c := range []backend.Charge{daily, perMinute} {
		expect(t, store, c, 60, true, c.Limit.Capacity-60, 0)
	}
	settlement := func(c backend.Charge, id byte, cost int64) backend.Charge {
		c.Terms = algorithms.Charge{Cost: cost, ChargedAt: of, Settle: true}
		return withID(id, c)[0]
	}
	for i, cost := range []int64{-40, -40, -40} { // the last two repeat the first, as if its answer had been lost
		clock.Set(of + algorithms.Micros(i)*s)
		for n, c := range []backend.Charge{daily, perMinute} {
			d := take(store, settlement(c, byte(100+n), cost))[0]
			if d.Err != nil || !d.Allowed || d.Replayed != (i > 0) || d.At != of || d.Remaining != c.Limit.Capacity-20 {
				t.Errorf("settlement %d of %s: got %+v, want %d left, replayed except the first time", i, c.Key, d, c.Limit.Capacity-20)
			}
		}
	}
	expect(t, store, daily, 0, true, 980, 0)
	for n, c := range []backend.Charge{daily, perMinute} {
		if err := backend.ResetBucket(t.Context(), store, c); err != nil {
			t.Fatal(err)
		}
		expect(t, store, c, 50, true, c.Limit.Capacity-50, 0)
		if d := take(store, settlement(c, byte(110+n), -20))[0]; d.Remaining != c.Limit.Capacity-50 {
			t.Errorf("%s was reset, and a refund for an earlier charge was accepted: %+v, want %d left", c.Key, d, c.Limit.Capacity-50)
		}
	}
}
