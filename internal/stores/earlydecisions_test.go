package stores_test

import (
	"errors"
	"sync"
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

// twoServers returns a Store of two servers. The first decides at once. The second has the buckets whose
// keys start with "s", and answers after 20 ms.
func twoServers() *stores.Router {
	fast := memory.New(memory.Config{Clock: storetest.Times(wall)})
	slow := submitFunc(func(b *backend.Batch) { time.AfterFunc(20*ms, func() { fast.Submit(b) }) })
	routes := [2]stores.Route{{Store: fast}, {Store: slow}}
	return stores.NewRouter(func(group []backend.Charge) *stores.Route {
		if group[0].Key[0] == 's' {
			return &routes[1]
		}
		return &routes[0]
	}, nil)
}

// A wrapper may answer a part of a batch, or divide it. It must forward decisions that arrive before the
// batch ends. Otherwise a request whose server has answered would fail at the deadline because of another
// server.
func TestEarlyDecisionsSurviveTheDeadline(t *testing.T) {
	day := fixed(t, 3, algorithms.Day)
	groups := func(keys ...[]string) (charges []backend.Charge) {
		for g, group := range keys {
			for _, key := range group {
				c := of(day, key, 1)
				c.Group = g
				charges = append(charges, c)
			}
		}
		return charges
	}
	var undos *stores.Undos
	hot := leased(fixed(t, 1_000_000, algorithms.Day), "hot", 1, 10_000)
	hotCache := func(t *testing.T, next backend.Store) backend.Store {
		t.Helper()
		s := stores.Cache(next, stores.CacheConfig{})
		t.Cleanup(s.Close)
		warm(t, s, hot)
		return s
	}
	denied := groups([]string{"a", "full"}, []string{"slow", "b"}, []string{"full"})
	for _, i := range []int{1, 4} {
		denied[i].Terms.Cost = 4
	}
	cases := []struct {
		name          string
		make          func(t *testing.T, next *stores.Router) backend.Store
		of            []backend.Charge
		decidedInTime []bool
	}{
		{"no wrapper", func(_ *testing.T, next *stores.Router) backend.Store { return next },
			groups([]string{"a"}, []string{"slow"}, []string{"b", "c"}), []bool{true, false, true, true}},
		{"a cached denial", func(t *testing.T, next *stores.Router) backend.Store {
			t.Helper()
			s := stores.Cache(next, stores.CacheConfig{})
			denied := of(day, "denied", 3)
			take(t.Context(), s, denied)
			if d := take(t.Context(), s, denied)[0]; d.Allowed || d.Err != nil {
				t.Fatalf("got %+v; want denied and no error", d)
			}
			return s
		}, append(groups([]string{"a"}, []string{"slow"}, []string{"b", "c"}), backend.Charge{Key: []byte("denied"), Limit: day, Group: 9, Terms: algorithms.Charge{Cost: 3}}),
			[]bool{true, false, true, true, true}},
		{"a lease", func(t *testing.T, next *stores.Router) backend.Store { t.Helper(); return hotCache(t, next) },
			append(groups([]string{"a"}, []string{"slow"}, []string{"b", "c"}), hot), []bool{true, false, true, true, true}},
		{"a lease that ends", func(t *testing.T, next *stores.Router) backend.Store {
			t.Helper()
			defer time.Sleep(240 * ms)
			return hotCache(t, next)
		}, append(groups([]string{"slow"}, []string{"a"}), leased(hot.Limit, "hot", 900_000, 10_000)), []bool{false, true, true}},
		{"two stores", func(t *testing.T, next *stores.Router) backend.Store {
			t.Helper()
			return stores.Divided(&claims{Store: next}, memory.New(memory.Config{Clock: storetest.Times(wall)}), func(c *backend.Charge) bool { return c.Key[0] == '2' }, undos)
		}, groups([]string{"a"}, []string{"slow"}, []string{"2"}, []string{"b", "c"}), []bool{true, false, true, true, true}},
		{"groups in parts", func(_ *testing.T, next *stores.Router) backend.Store {
			return stores.Parts(next, func(_ int, c *backend.Charge) int { return int(c.Key[0]) }, undos)
		}, groups([]string{"a", "slow"}, []string{"b", "c"}, []string{"d", "e"}), []bool{false, false, true, true, true, true}},
		{"denied groups in parts", func(_ *testing.T, next *stores.Router) backend.Store {
			return stores.Parts(routed(next), func(_ int, c *backend.Charge) int { return int(c.Key[0]) }, undos)
		}, denied, []bool{true, true, false, false, true}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				undos = stores.NewUndos(nil, time.Second)
				defer undos.Close()
				s := stores.Deadline(nil, c.make(t, twoServers()), 5*ms, 0, nil)
				done := make(chan struct{})
				b := &backend.Batch{
					Charges: c.of, Decisions: make([]backend.Decision, len(c.of)), Known: make([]atomic.Bool, len(c.of)),
					Done: func(*backend.Batch) { close(done) },
				}
				s.Submit(b)
				for i, want := range c.decidedInTime {
					if got := b.IsKnown(i); got != want {
						t.Errorf("%s: known at once %t, want %t", c.of[i].Key, got, want)
					}
				}
				time.Sleep(6 * ms)
				<-done
				for i, decidedInTime := range c.decidedInTime {
					if got := b.Decisions[i].Err == nil; got != decidedInTime || !got && !errors.Is(b.Decisions[i].Err, backend.ErrUnavailable) {
						t.Errorf("%s: decided %v, want %v: %+v", c.of[i].Key, got, decidedInTime, b.Decisions[i])
					}
				}
				time.Sleep(20 * ms) // until the slow server has answered
			})
		})
	}
}

// A group in parts is denied before its batch ends. Its decisions show the buckets as they are after the undo. After
// the batch has ended, the units are in the bucket again.
func TestADeniedGroupInPartsIsRefunded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		undos := stores.NewUndos(nil, time.Second)
		defer undos.Close()
		day, next := fixed(t, 3, algorithms.Day), twoServers()
		s := stores.Parts(next, func(_ int, c *backend.Charge) int { return int(c.Key[0]) }, undos)
		a, b, slow := of(day, "a", 2), of(day, "b", 4), of(day, "slow", 1)
		slow.Group = 1
		known := make([]atomic.Bool, 3)
		batch := &backend.Batch{Charges: []backend.Charge{a, b, slow}, Decisions: make([]backend.Decision, 3), Known: known, Done: func(*backend.Batch) {}}
		s.Submit(batch)
		if d := batch.Decisions[0]; !known[0].Load() || !known[1].Load() || d.Remaining != 3 || batch.Decisions[1].Allowed {
			t.Errorf("before the batch ends: known %t and %t, %+v; want both decisions known: 3 remaining in the first, the second denied", known[0].Load(), known[1].Load(), batch.Decisions)
		}
		time.Sleep(21 * ms)
		synctest.Wait()
		if n := left(t, next, a); n != 3 || batch.Decisions[0].Remaining != 3 || !batch.Decisions[2].Allowed {
			t.Errorf("%d of 3 left: %+v; want 3 left, decision 0 with 3 remaining, and decision 2 allowed", n, batch.Decisions)
		}
	})
}

func TestEarlyDecisionsOfSeveralGoroutines(t *testing.T) {
	const servers = 8
	day := fixed(t, 1_000_000, algorithms.Day)
	var routes [servers]stores.Route
	for i := range routes {
		next := memory.New(memory.Config{})
		routes[i].Store = batchFunc(func(b *backend.Batch) { submitAndWait(next, b) })
	}
	next := stores.NewRouter(func(group []backend.Charge) *stores.Route { return &routes[group[0].Key[0]%servers] }, nil)
	undos := stores.NewUndos(nil, time.Second)
	defer undos.Close()
	denied := stores.Cache(stores.Parts(next, func(_ int, c *backend.Charge) int { return int(c.Key[0] % servers) }, undos), stores.CacheConfig{})
	lease := stores.Cache(denied, stores.CacheConfig{})
	defer lease.Close()
	take(t.Context(), denied, of(day, "never", 2_000_000), of(day, "x", 1))
	s := stores.Deadline(nil, lease, time.Minute, 0, nil)
	var clients sync.WaitGroup
	for n := range 4 {
		clients.Go(func() {
			for range 300 {
				var charges []backend.Charge
				for g := range 16 {
					for i := range 1 + g%3 {
						c := leased(day, string(rune('a'+(g+3*i+n)%26)), 1, 1000)
						c.Group = g
						charges = append(charges, c)
					}
				}
				b := backend.Batch{Charges: charges, Decisions: make([]backend.Decision, len(charges)), Known: make([]atomic.Bool, len(charges))}
				backend.Wait(s, b)
				for i := range b.Decisions {
					if d := &b.Decisions[i]; d.Err != nil || !d.Allowed {
						t.Errorf("%s: got %+v; want no error and allowed", charges[i].Key, d)
						return
					}
				}
			}
		})
	}
	clients.Wait()
}

func submitAndWait(to backend.Store, b *backend.Batch) {
	backend.Wait(to, backend.Batch{Charges: b.Charges, Decisions: b.Decisions})
}
