package stores_test

import (
	"cmp"
	"context"
	"flag"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/scaled"
	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

var leaseSeed = flag.Uint64("lease-seed", 0, "runs the simulation of leases with this seed only")

// Many sidecars lease from one store. Their clocks differ from the store's clock and from each other. Their
// links are slow, lose requests and answers, and break. Sidecars die.
//
// Together they never admit more than the bound. If they admit less, the missing units are no more than those that may
// be leased or lost. In a window of a day, the admitted, the lost and the remaining units must add up to the limit.
func TestSimulationOfLeases(t *testing.T) {
	for name, run := range map[string]func(w *leaseSim, rng *rand.Rand){
		"busy":            (*leaseSim).busy,
		"pulses":          (*leaseSim).pulses,
		"lossless pulses": (*leaseSim).losslessPulses,
	} {
		t.Run(name, func(t *testing.T) {
			n := 8
			if testing.Short() { // the race detector, which runs with -short, is ten times slower
				n = 2
			}
			seeds := make([]uint64, n)
			for i := range seeds {
				seeds[i] = uint64(i + 1)
			}
			if *leaseSeed > 0 {
				seeds = []uint64{*leaseSeed}
			}
			for _, seed := range seeds {
				synctest.Test(t, func(t *testing.T) {
					if runLeases(t, seed, run); t.Failed() {
						t.Fatalf("seed %d (-lease-seed)", seed)
					}
				})
			}
		})
	}
}

const (
	simSidecars = 6
	simWorkers  = 3
	simMaxCost  = 4
)

type leaseSim struct {
	t     *testing.T
	seed  uint64
	store *memory.Store
	skew  time.Duration // how far the store's clock is ahead of the time of the synctest bubble
	keys  []simKey

	sidecarsAlive int64
	calm          bool // nothing is lost, and no sidecar dies

	mu        sync.Mutex
	admitted  [][]simCharge                       // by key; this and the following fields are guarded by mu
	denied    [][]simCharge                       // denied costs with their times, by key
	lost      []algorithms.Micros                 // times at which a lease may have been lost
	charges   map[string]int64                    // the number of charges that may have granted a lease, by key
	submitted map[*backend.Source]map[string]bool // the keys submitted to the store, by source
	unusable  map[string]int64                    // units that no sidecar can use, by key: they were charged without an answer, or not returned
}

type simKey struct {
	charge backend.Charge
	window algorithms.Micros // 0 for a token bucket
}

// simCharge is a number of units that were admitted or denied at a time of the store's clock.
type simCharge struct {
	at   algorithms.Micros
	cost int64
}

func (w *leaseSim) storeNow() algorithms.Micros {
	return algorithms.Micros(time.Now().Add(w.skew).UnixMicro())
}

func runLeases(t *testing.T, seed uint64, run func(*leaseSim, *rand.Rand)) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 0))
	w := &leaseSim{
		t: t, seed: seed, skew: time.Duration(rng.Int64N(int64(time.Hour))) - 30*time.Minute,
		charges: map[string]int64{}, unusable: map[string]int64{}, submitted: map[*backend.Source]map[string]bool{},
	}
	w.store = memory.New(memory.Config{Clock: storetest.Times(w.storeNow)})
	run(w, rng)
	for k := range w.keys {
		w.check(k)
	}
}

func (w *leaseSim) busy(rng *rand.Rand) {
	s := algorithms.Second
	w.add(rng, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 500 + rng.Int64N(3000), Period: s})
	w.add(rng, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 200, Period: s / 10, Start: new(algorithms.Micros)})
	w.add(rng, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 20_000, Period: algorithms.Day})
	w.add(rng, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1000, Period: s})
	w.add(rng, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 7, Period: s / 100, Capacity: new(200 + rng.Int64N(2000))})
	w.add(rng, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 20, Period: s, Capacity: new(int64(20_000))})
	w.runSidecars(simSidecars, 6*time.Second, w.request)
}

// pulses simulates sidecars with bursts of requests. Between two bursts for a key there is no request until its leases have
// expired, so that most leased units are returned unused, or lost. At the end the sidecars consume everything.
func (w *leaseSim) pulses(rng *rand.Rand) {
	w.add(rng, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 450, Period: algorithms.Second, Capacity: new(int64(4000))})
	w.add(rng, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: algorithms.Second, Capacity: new(int64(20_000))})
	w.add(rng, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 20_000, Period: algorithms.Day})
	w.pulse()
}

// losslessPulses is pulses with links that lose nothing and sidecars that do not die. The bucket refills while
// units are leased, so returned units could exceed a full bucket.
func (w *leaseSim) losslessPulses(rng *rand.Rand) {
	w.calm = true
	w.add(rng, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 450, Period: algorithms.Second, Capacity: new(int64(4000))})
	w.pulse()
}

func (w *leaseSim) pulse() {
	drain := time.Now().Add(6 * time.Second)
	w.runSidecars(14, 7*time.Second, func(worker int, rng *rand.Rand, s backend.Store) {
		if time.Now().Before(drain) {
			time.Sleep(min(time.Until(drain), 1100*ms+time.Duration(rng.Int64N(int64(1400*ms)))))
			for i := 0; i < 10 && worker < len(w.keys); i++ {
				w.take(s, worker, simMaxCost)
			}
			return
		}
		for k := range w.keys {
			w.take(s, k, 1)
		}
		time.Sleep(100 * time.Microsecond)
	})
}

func (w *leaseSim) runSidecars(sidecars int64, length time.Duration, action func(worker int, rng *rand.Rand, s backend.Store)) {
	w.sidecarsAlive = sidecars
	var alive sync.WaitGroup
	end := time.Now().Add(length)
	for i := range sidecars {
		alive.Go(func() { w.sidecar(rand.New(rand.NewPCG(w.seed, uint64(i+1))), end, action) })
	}
	alive.Wait()
}

func (w *leaseSim) add(rng *rand.Rand, spec algorithms.Spec) {
	limit := compile(w.t, spec)
	k := simKey{charge: leased(limit, string(rune('a'+len(w.keys))), 0, limit.Capacity/20)}
	k.charge.Terms.Hash = rng.Uint64()
	if spec.Kind == algorithms.FixedWindow {
		k.window = spec.Period
	}
	w.keys = append(w.keys, k)
	w.admitted, w.denied = append(w.admitted, nil), append(w.denied, nil)
}

// link returns a sidecar's connection to the store. It delays, breaks, and loses requests and answers. It drops
// returned units of a dead sidecar.
func (w *leaseSim) link(rng *rand.Rand, crashed *atomic.Bool) backend.Store {
	var mu sync.Mutex // guards rng and parted
	var parted time.Time
	return batchFunc(func(b *backend.Batch) {
		charges, decisions := b.Charges, b.Decisions
		mu.Lock()
		there, back, outcome := rng.Int64N(2000), rng.Int64N(2000), rng.IntN(400)
		if w.calm {
			outcome = 3
		}
		if outcome == 0 {
			parted = time.Now().Add(time.Duration(rng.Int64N(int64(600 * ms))))
		}
		if time.Now().Before(parted) {
			outcome = 1
		}
		mu.Unlock()
		time.Sleep(time.Duration(there) * time.Microsecond)
		w.eachLocked(charges, func(_ int, c *backend.Charge) {
			if keys := w.submitted[b.Source]; keys != nil {
				keys[string(c.Key)] = true
			}
		})
		if outcome <= 1 || crashed.Load() && charges[0].Terms.Cost < 0 { // the request is lost
			w.eachLocked(charges, func(_ int, c *backend.Charge) { w.unusable[string(c.Key)] += max(0, -c.Terms.Cost) })
			fail(decisions)
			return
		}
		backend.Take(context.Background(), w.store, charges, decisions)
		w.eachLocked(charges, func(i int, c *backend.Charge) {
			if !backend.ConsumedAny(groupOf(charges, decisions, i)) {
				return
			}
			if w.charges[string(c.Key)]++; outcome == 2 {
				w.unusable[string(c.Key)] += max(0, c.Terms.Cost)
			}
		})
		if time.Sleep(time.Duration(back) * time.Microsecond); outcome == 2 { // the answer is lost
			w.recordLoss()
			fail(decisions)
		}
	})
}

func (w *leaseSim) eachLocked(charges []backend.Charge, record func(i int, c *backend.Charge)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range charges {
		record(i, &charges[i])
	}
}

func groupOf(charges []backend.Charge, decisions []backend.Decision, i int) ([]backend.Charge, []backend.Decision) {
	for at := 0; ; {
		end := at + backend.GroupLen(charges[at:])
		if i < end {
			return charges[at:end], decisions[at:end]
		}
		at = end
	}
}

func (w *leaseSim) recordLoss() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = append(w.lost, w.storeNow())
}

// sidecar calls action repeatedly until end, on a store with leases. Now and then the sidecar dies, and another
// one takes its place.
func (w *leaseSim) sidecar(rng *rand.Rand, end time.Time, action func(int, *rand.Rand, backend.Store)) {
	born := time.Now()
	offset, driftPPM := time.Duration(rng.Int64N(int64(time.Hour))), rng.Int64N(1000)-500
	clocks := func() (monotonic, wall time.Duration) {
		passed := time.Since(born) * time.Duration(1_000_000+driftPPM) / 1_000_000
		return passed, offset + passed
	}
	var crashed atomic.Bool
	link := w.link(rand.New(rand.NewPCG(rng.Uint64(), 0)), &crashed)
	for time.Now().Before(end) {
		lifetime := time.Until(end)
		if !w.calm {
			lifetime = min(lifetime, time.Duration(rng.Int64N(int64(4*time.Second))))
		}
		s := stores.Cache(link, stores.CacheConfig{Clocks: clocks})
		ctx, cancel := context.WithTimeout(context.Background(), lifetime)
		var work sync.WaitGroup
		for i := range simWorkers {
			mine := rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))
			work.Go(func() {
				for ctx.Err() == nil {
					action(i, mine, s)
				}
			})
		}
		work.Wait()
		cancel()
		if crashed.Store(!w.calm && rng.IntN(2) == 0); crashed.Load() {
			w.recordLoss()
		}
		s.Close() // a sidecar that ends normally returns its units
		crashed.Store(false)
	}
}

func (w *leaseSim) request(_ int, rng *rand.Rand, s backend.Store) {
	if rng.IntN(300) == 0 {
		time.Sleep(time.Duration(rng.Int64N(int64(400 * ms))))
	}
	time.Sleep(time.Duration(rng.Int64N(400)) * time.Microsecond)
	chosen := rng.Perm(len(w.keys))[:1]
	if rng.IntN(5) == 0 {
		chosen = rng.Perm(len(w.keys))[:2]
	}
	group := make([]backend.Charge, len(chosen))
	for i, k := range chosen {
		group[i] = w.keys[k].charge
		group[i].Terms.Cost = 1
		if rng.IntN(8) == 0 {
			group[i].Terms.Cost = 1 + rng.Int64N(simMaxCost)
		}
	}
	w.takeGroup(s, chosen, group)
}

func (w *leaseSim) take(s backend.Store, k int, cost int64) {
	c := w.keys[k].charge
	c.Terms.Cost = cost
	w.takeGroup(s, []int{k}, []backend.Charge{c})
}

func (w *leaseSim) takeGroup(s backend.Store, chosen []int, group []backend.Charge) {
	done := make(chan struct{})
	b := &backend.Batch{
		Charges: group, Decisions: make([]backend.Decision, len(group)), Deadline: time.Now().Add(10 * ms),
		Source: &backend.Source{}, Done: func(*backend.Batch) { close(done) },
	}
	submitted := map[string]bool{}
	w.mu.Lock()
	w.submitted[b.Source] = submitted
	w.mu.Unlock()
	s.Submit(b)
	<-done
	w.record(chosen, group, b.Decisions, submitted)
	w.mu.Lock()
	delete(w.submitted, b.Source)
	w.mu.Unlock()
}

// record records admitted and denied units with a time of the store's clock. If the store decided, that is the time of
// the decision. If a lease decided, it is the present time.
func (w *leaseSim) record(chosen []int, group []backend.Charge, answers []backend.Decision, submitted map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := !slices.ContainsFunc(answers, func(d backend.Decision) bool { return !d.Allowed })
	for i, k := range chosen {
		at := w.storeNow()
		if submitted[string(group[i].Key)] {
			at = answers[i].At
		}
		switch {
		case all:
			w.admitted[k] = append(w.admitted[k], simCharge{at, group[i].Terms.Cost})
		case answers[i].Err == nil && !answers[i].Allowed:
			w.denied[k] = append(w.denied[k], simCharge{at, group[i].Terms.Cost})
		}
	}
}

func (w *leaseSim) check(k int) {
	all := w.admitted[k]
	for _, charges := range [][]simCharge{all, w.denied[k]} {
		slices.SortStableFunc(charges, func(a, b simCharge) int { return cmp.Compare(a.at, b.at) })
	}
	if len(all) == 0 {
		w.t.Errorf("key %d: nothing was admitted", k)
		return
	}
	if w.keys[k].window > 0 {
		w.checkWindows(k, all)
	} else {
		w.checkSpans(k, all)
		w.checkUnder(k, all)
	}
}

func (w *leaseSim) checkWindows(k int, all []simCharge) {
	c := w.keys[k].charge
	n := scaled.Of(c.Limit)
	phase := algorithms.Micros(n.PhaseOf(c.Terms.Hash))
	window := func(at algorithms.Micros) algorithms.Micros { return (at - phase) / w.keys[k].window }
	admitted, denied, lost := map[algorithms.Micros]int64{}, map[algorithms.Micros]bool{}, map[algorithms.Micros]int64{}
	for _, a := range all {
		admitted[window(a.at)] += a.cost
	}
	for _, d := range w.denied[k] {
		denied[window(d.at)] = true
	}
	for _, at := range w.lost {
		lost[window(at)]++
	}
	for n, units := range admitted {
		if units > c.Limit.Capacity {
			w.t.Errorf("key %d: %d units admitted in a window, limit %d", k, units, c.Limit.Capacity)
		}
		// In a window with a denial, all units that were not admitted are leased or lost.
		most := (w.sidecarsAlive+lost[n])*(c.Lease.Most+simMaxCost) + simMaxCost
		if denied[n] && units < c.Limit.Capacity-most {
			w.t.Errorf("key %d: %d admitted in a window, limit %d, at most %d may be leased and lost", k, units, c.Limit.Capacity, most)
		}
	}
	if w.keys[k].window == algorithms.Day {
		left := take(context.Background(), w.store, c)[0].Remaining
		if used, lost := admitted[window(w.storeNow())], w.unusable[string(c.Key)]; left != c.Limit.Capacity-used-lost {
			w.t.Errorf("key %d: %d admitted and %d lost of %d, and %d left; want the sum of the three to be the limit", k, used, lost, c.Limit.Capacity, left)
		}
	}
}

// checkSpans checks for every span T that admitted*period <= capacity*period + (T + Lease.For)*rate.
func (w *leaseSim) checkSpans(k int, all []simCharge) {
	c := w.keys[k].charge
	l := scaled.Of(c.Limit)
	most := c.Limit.Capacity*l.Q + int64(c.Lease.For)*l.P
	sum, least, over := int64(0), int64(0), int64(0)
	for i, a := range all {
		flowed := int64(a.at-all[0].at) * l.P
		if at := sum*l.Q - flowed; i == 0 || at < least {
			least = at
		}
		sum += a.cost
		over = max(over, sum*l.Q-flowed-least-most)
	}
	if over > 0 {
		w.t.Errorf("key %d: in some span %d/%d units more than the bound were admitted", k, over, l.Q)
	}
}

// checkUnder compares a token bucket, at every denial and at the end, with a bucket that was charged only
// the admitted units. The token bucket may have fewer units by three amounts: the leased units, the lost units,
// and for each lease the inflow during the lease.
func (w *leaseSim) checkUnder(k int, all []simCharge) {
	c := w.keys[k].charge
	l := scaled.Of(c.Limit)
	lost := w.unusable[string(c.Key)] + w.charges[string(c.Key)]*(int64(c.Lease.For)*l.P/l.Q+1)
	granted := w.sidecarsAlive * (c.Lease.Most + simWorkers*simMaxCost)
	value, at := l.V, all[0].at
	level := func(now algorithms.Micros) int64 {
		value, at = min(l.V, value+int64(now-at)*l.P), now
		return value
	}
	for _, d := range w.denied[k] {
		for len(all) > 0 && all[0].at <= d.at {
			value = level(all[0].at) - all[0].cost*l.Q
			all = all[1:]
		}
		if there := level(d.at) / l.Q; there >= d.cost+granted+lost {
			w.t.Errorf("key %d: a cost of %d was denied although %d units should be left; at most %d are leased, %d lost", k, d.cost, there, granted, lost)
			return
		}
	}
	for _, a := range all {
		value = level(a.at) - a.cost*l.Q
	}
	there := level(w.storeNow()) / l.Q
	if left := take(context.Background(), w.store, c)[0].Remaining; left < there-lost {
		w.t.Errorf("key %d: %d left of %d, at most %d are lost", k, left, there, lost)
	}
}
