package backend_test

import (
	"context"
	"flag"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

var leaseSeed = flag.Uint64("lease-seed", 0, "plays this seed of the simulation of leases alone")

// Many sidecars lease from one store, on clocks that differ from its and from each other's, over
// links that are slow, lose questions and answers, and part; sidecars die. What they admit together
// is never over the bound, and under it by no more than what was on loan.
func TestSimulationOfLeases(t *testing.T) {
	seeds := make([]uint64, 15)
	for i := range seeds {
		seeds[i] = uint64(i + 1)
	}
	if *leaseSeed > 0 {
		seeds = []uint64{*leaseSeed}
	}
	for _, seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			if playLeases(t, seed); t.Failed() {
				t.Fatalf("seed %d (-lease-seed)", seed)
			}
		})
	}
}

const (
	simSidecars = 6
	simWorkers  = 3
	simMaxCost  = 4
)

// leaseSim is the world of one simulation.
type leaseSim struct {
	t     *testing.T
	store *memory.Store
	skew  time.Duration // of the store's clock
	keys  []simKey

	mu       sync.Mutex
	admitted [][]simCharge         // by key; guarded by mu
	denied   [][]algorithms.Micros // when, by key; guarded by mu
	lost     []algorithms.Micros   // when a loan may have been lost; guarded by mu
}

type simKey struct {
	charge backend.Charge
	window algorithms.Micros // 0: a token bucket
}

// simCharge is units that were admitted at a time by the store's clock.
type simCharge struct {
	at   algorithms.Micros
	cost int64
}

// storeNow is the time by the store's clock.
func (w *leaseSim) storeNow() algorithms.Micros {
	return algorithms.Micros(time.Now().Add(w.skew).UnixMicro())
}

func playLeases(t *testing.T, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 0))
	w := &leaseSim{t: t, skew: time.Duration(rng.Int64N(int64(time.Hour))) - 30*time.Minute}
	w.store = memory.New(memory.Config{Clock: w.storeNow})
	w.addKeys(rng)
	var sidecars sync.WaitGroup
	end := time.Now().Add(6 * time.Second)
	for i := range simSidecars {
		sidecars.Go(func() { w.sidecar(rand.New(rand.NewPCG(seed, uint64(i+1))), end) })
	}
	sidecars.Wait()
	for k := range w.keys {
		w.check(k)
	}
}

func (w *leaseSim) addKeys(rng *rand.Rand) {
	add := func(spec algorithms.Spec) {
		limit, err := algorithms.Compile(spec)
		if err != nil {
			w.t.Fatal(err)
		}
		k := simKey{charge: of(&limit, string(rune('a'+len(w.keys))), 0)}
		k.charge.Ask.Hash = rng.Uint64()
		k.charge.Lease = &algorithms.Lease{Most: limit.Capacity / 20, For: 250_000}
		if spec.Kind == algorithms.FixedWindow {
			k.window = spec.Period
		}
		w.keys = append(w.keys, k)
	}
	n := func(v int64) *int64 { return &v }
	s := algorithms.Second
	add(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 500 + rng.Int64N(3000), Period: s})
	add(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 200, Period: s / 10, Start: new(algorithms.Micros)})
	add(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 20_000, Period: algorithms.Day})
	add(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1000, Period: s})
	add(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 7, Period: s / 100, Capacity: n(200 + rng.Int64N(2000))})
	w.admitted, w.denied = make([][]simCharge, len(w.keys)), make([][]algorithms.Micros, len(w.keys))
}

// asking tells which keys the store was asked of for one Take.
type asking struct{}

// link is a sidecar's way to the store.
func (w *leaseSim) link(rng *rand.Rand) backend.Store {
	var mu sync.Mutex // guards rng and parted
	var parted time.Time
	return storeFunc(func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
		mu.Lock()
		there, back, fate := rng.Int64N(2000), rng.Int64N(2000), rng.IntN(400)
		if fate == 0 {
			parted = time.Now().Add(time.Duration(rng.Int64N(int64(600 * ms))))
		}
		if time.Now().Before(parted) {
			fate = 1
		}
		mu.Unlock()
		time.Sleep(time.Duration(there) * time.Microsecond)
		if keys, ok := ctx.Value(asking{}).(map[string]bool); ok {
			for i := range charges {
				keys[string(charges[i].Key)] = true
			}
		}
		if fate <= 1 { // the question is lost
			fail(decisions)
			return
		}
		w.store.Take(ctx, charges, decisions)
		if time.Sleep(time.Duration(back) * time.Microsecond); fate == 2 { // the answer is
			w.lose()
			fail(decisions)
		}
	})
}

// lose notes that what one sidecar has on loan may be lost.
func (w *leaseSim) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = append(w.lost, w.storeNow())
}

// sidecar asks until end. Now and then it dies, and another takes its place.
func (w *leaseSim) sidecar(rng *rand.Rand, end time.Time) {
	born := time.Now()
	offset, drift := time.Duration(rng.Int64N(int64(time.Hour))), rng.Int64N(1000)-500 // ppm
	clock := func() time.Time {
		return born.Add(offset + time.Since(born)*time.Duration(1_000_000+drift)/1_000_000)
	}
	link := w.link(rand.New(rand.NewPCG(rng.Uint64(), 0)))
	for time.Now().Before(end) {
		life := min(time.Until(end), time.Duration(rng.Int64N(int64(4*time.Second))))
		s := backend.Lease(link, backend.LeaseConfig{Clock: clock})
		ctx, cancel := context.WithTimeout(context.Background(), life)
		var work sync.WaitGroup
		work.Go(func() { s.Run(ctx) })
		for i := range simWorkers {
			mine := rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))
			work.Go(func() { w.work(ctx, mine, s) })
		}
		work.Wait()
		cancel()
		if rng.IntN(2) == 0 {
			w.lose()
		} else { // it had time to hand back
			s.Forget(context.Background())
		}
	}
}

// work asks for one key or two together, in bursts.
func (w *leaseSim) work(ctx context.Context, rng *rand.Rand, s backend.Store) {
	for ctx.Err() == nil {
		if rng.IntN(300) == 0 {
			time.Sleep(time.Duration(rng.Int64N(int64(400 * ms))))
		}
		time.Sleep(time.Duration(rng.Int64N(400)) * time.Microsecond)
		which := rng.Perm(len(w.keys))[:1]
		if rng.IntN(5) == 0 {
			which = rng.Perm(len(w.keys))[:2]
		}
		group := make([]backend.Charge, len(which))
		for i, k := range which {
			group[i] = w.keys[k].charge
			group[i].Ask.Cost = 1
			if rng.IntN(8) == 0 {
				group[i].Ask.Cost = 1 + rng.Int64N(simMaxCost)
			}
		}
		asked := map[string]bool{}
		one, cancel := context.WithTimeout(context.WithValue(context.Background(), asking{}, asked), 10*ms)
		w.note(which, group, take(one, s, group...), asked)
		cancel()
	}
}

// note remembers what was admitted, and when: by the store, when it said so; from a loan, now.
func (w *leaseSim) note(which []int, group []backend.Charge, answers []backend.Decision, asked map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := !slices.ContainsFunc(answers, func(d backend.Decision) bool { return !d.Allowed })
	for i, k := range which {
		at := w.storeNow()
		if asked[string(group[i].Key)] {
			at = answers[i].At
		}
		switch {
		case all:
			w.admitted[k] = append(w.admitted[k], simCharge{at, group[i].Ask.Cost})
		case answers[i].Err == nil && !answers[i].Allowed:
			w.denied[k] = append(w.denied[k], at)
		}
	}
}

// check compares what was admitted of a key with what may be.
func (w *leaseSim) check(k int) {
	all := w.admitted[k]
	slices.SortFunc(all, func(a, b simCharge) int { return int(a.at - b.at) })
	if len(all) == 0 {
		w.t.Errorf("key %d: nothing was admitted", k)
		return
	}
	if w.keys[k].window > 0 {
		w.checkWindows(k, all)
	} else {
		w.checkSpans(k, all)
	}
}

func (w *leaseSim) checkWindows(k int, all []simCharge) {
	c := w.keys[k].charge
	phase := algorithms.Micros(c.Limit.PhaseOf(c.Ask.Hash))
	window := func(at algorithms.Micros) algorithms.Micros { return (at - phase) / w.keys[k].window }
	admitted, denied, lost := map[algorithms.Micros]int64{}, map[algorithms.Micros]bool{}, map[algorithms.Micros]int64{}
	for _, a := range all {
		admitted[window(a.at)] += a.cost
	}
	for _, at := range w.denied[k] {
		denied[window(at)] = true
	}
	for _, at := range w.lost {
		lost[window(at)]++
	}
	for n, units := range admitted {
		if units > c.Limit.Capacity {
			w.t.Errorf("key %d: %d admitted in a window, limit %d", k, units, c.Limit.Capacity)
		}
		// In a window in which something was denied, what was not admitted is on loan or lost.
		most := (simSidecars+lost[n])*(c.Lease.Most+simMaxCost) + simMaxCost
		if denied[n] && units < c.Limit.Capacity-most {
			w.t.Errorf("key %d: %d admitted in a window, limit %d, at most %d may be on loan and lost", k, units, c.Limit.Capacity, most)
		}
	}
	if w.keys[k].window == algorithms.Day { // everything is back, but for what was lost
		left := take(context.Background(), w.store, c)[0].Remaining
		used := admitted[window(w.storeNow())]
		most := int64(len(w.lost)) * (c.Lease.Most + simWorkers*simMaxCost)
		if left > c.Limit.Capacity-used || left < c.Limit.Capacity-used-most {
			w.t.Errorf("key %d: %d admitted of %d, %d left, at most %d lost", k, used, c.Limit.Capacity, left, most)
		}
	}
}

// checkSpans checks every span: admitted*period <= capacity*period + (T + for)*rate.
func (w *leaseSim) checkSpans(k int, all []simCharge) {
	c := w.keys[k].charge
	l := c.Limit
	most := l.Capacity*l.Q + int64(c.Lease.For)*l.P
	sum, least := int64(0), int64(0)
	for i, a := range all {
		flowed := int64(a.at-all[0].at) * l.P
		if at := sum*l.Q - flowed; i == 0 || at < least {
			least = at
		}
		sum += a.cost
		if over := sum*l.Q - flowed - least - most; over > 0 {
			w.t.Errorf("key %d: %d/%d of a unit over the bound", k, over, l.Q)
		}
	}
}
