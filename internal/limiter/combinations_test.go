package limiter_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const combined = `
domain: d
hash_tag: domain
limits:
  uploads: {algorithm: concurrency, capacity: 3, ttl: 1m}
  exports: {algorithm: concurrency, capacity: 2, ttl: 20s}
  watched: {algorithm: concurrency, capacity: 2, ttl: 1m, shadow_mode: true}
  calls: {algorithm: fixed_window, rate: 30, period: 1d}
  plan: {algorithm: fixed_window, rate: 10, period: 1d, then: credits}
  credits: {algorithm: fixed_window, rate: 15, period: 1d}
  tokens: {algorithm: fixed_window, rate: 300, period: 1d, settle: {estimate: 20, ttl: 30s}}
  monthly: {algorithm: fixed_window, rate: 5, period: 1m, quota_mode: true}
  weekly: {algorithm: fixed_window, rate: 8, period: 1m, quota_mode: true}
  logins: {algorithm: fixed_window, rate: 20, period: 1d, penalty: {after: 2, for: 10s, max: 20s}}
  spent: {algorithm: fixed_window, rate: 20, period: 1d, overdraw: true}
  open: {algorithm: fixed_window, rate: 20, period: 1d, on_backend_failure: allow}
descriptors:
  - {key: uploads, limit: uploads}
  - {key: exports, limit: exports}
  - {key: watched, limit: watched}
  - {key: calls, limit: calls}
  - {key: plan, limit: plan}
  - {key: tokens, limit: tokens}
  - {key: monthly, limit: monthly}
  - {key: weekly, limit: weekly}
  - {key: logins, limit: logins}
  - {key: spent, limit: spent}
  - {key: open, limit: open}
`

var (
	combinedNames = []string{"uploads", "exports", "watched", "calls", "plan", "tokens", "monthly", "weekly", "logins", "spent", "open"}
	windowRates   = map[string]int64{"calls": 30, "plan": 10, "credits": 15, "logins": 20}
)

// unsure is a Store that leaves some groups undecided: not charged, charged, or of an unknown outcome.
type unsure struct {
	backend.Store
	rng *rand.Rand
	one int // of so many groups; 0 means none
}

func (s *unsure) Submit(b *backend.Batch) {
	for charges, decisions := b.Charges, b.Decisions; len(charges) > 0; {
		n := backend.GroupLen(charges)
		fails, err := s.one > 0 && s.rng.IntN(s.one) == 0, backend.ErrUnavailable
		if fails && s.rng.IntN(3) == 0 {
			err = backend.ErrNotTaken
		}
		if !fails || err == backend.ErrUnavailable && s.rng.IntN(2) == 0 {
			backend.Take(context.Background(), s.Store, charges[:n], decisions[:n])
		}
		for i := range decisions[:n] {
			if fails {
				decisions[i] = backend.Decision{Err: err}
			}
		}
		charges, decisions = charges[n:], decisions[n:]
	}
	b.Done(b)
}

// work is a request that may be repeated under its id, and what it holds after it was allowed.
type work struct {
	id             string // "" if it is not repeated
	isNamed, begun bool
	costs          []limiter.NamedCharge
	stored         bool   // a repetition must get the same answer
	slots          string // the id that returns the slots
	held           map[string]algorithms.Micros
}

func (w *work) call() *limiter.Call {
	c := &limiter.Call{Request: limiter.Request{Domain: "d", Returns: true}}
	if w.id != "" {
		c.IdempotencyKey = limiter.IdempotencyKey{ID: w.id, Lifetime: algorithms.Day}
	}
	for _, cost := range w.costs {
		if w.isNamed {
			c.Limits = append(c.Limits, cost)
			continue
		}
		d := c.AddDescriptor()
		d.Entries, d.Cost = []descriptors.Entry{{Key: cost.Name, Value: cost.Key[0]}}, cost.Count
	}
	return c
}

// isStored reports whether a repetition of w gets the answer to c. A request that exceeded only limits in shadow or quota
// mode consumed nothing, and one with an unlimited limit may be another request after that adjustment.
func (w *work) isStored(c *limiter.Call) bool {
	consumed := false
	for i := range c.Results {
		r := &c.Results[i]
		if r.Outcome == limiter.Unlimited {
			return false
		}
		consumed = consumed || !r.Policy.Shadow && !r.Policy.Quota && c.Consumed(r)
	}
	return w.id != "" && !c.Failed && consumed
}

// adjustAtRandom blocks a key, makes it unlimited, changes its numbers, or ends the adjustment that it has.
func adjustAtRandom(rng *rand.Rand, now algorithms.Micros, adjusted map[string]*adjust.Adjustment) {
	name, key := combinedNames[rng.IntN(len(combinedNames))], strconv.Itoa(rng.IntN(2))
	a := &adjust.Adjustment{Target: adjust.Target{Domain: "d", Limit: name, Key: []string{key}}, Expires: now + 1 + algorithms.Micros(rng.Int64N(int64(90*sec)))}
	a.ID = a.Target.ID()
	switch rng.IntN(5) {
	case 0:
		a.Change.Block = true
	case 1:
		a.Change.Unlimited = true
	case 2, 3:
		a.Change.Factor = []adjust.Factor{500, 1500, 2000}[rng.IntN(3)]
	default:
		delete(adjusted, name+key)
		return
	}
	adjusted[name+key] = a
}

// slotsOf returns the id of the slots of c as the HTTP API and the proxies make it.
func (w *work) slotsOf(b *bench, c *limiter.Call) string {
	if !w.isNamed {
		return string(c.AppendID(nil))
	}
	all := &limiter.Reserved{Domain: limiter.PrefixNumber("d"), ID: c.SlotID()}
	for _, part := range c.Slots() {
		all.Parts = append(all.Parts, part)
	}
	return b.ID(all)
}

// Requests combine limits of all kinds at random. They are repeated under their ids, the store fails, slots are returned
// and expire, and operators adjust keys. An allowed request holds the slot that its answer names, no window admits more
// than its rate, a block denies, and a repetition gets the stored answer.
func TestCombinationsOfLimitsExceedNone(t *testing.T) {
	for seed := range uint64(800) {
		rng := rand.New(rand.NewPCG(seed, 1))
		b := newBench(t, combined)
		failsOnce := []int{0, 0, 30, 8}[rng.IntN(4)]
		b.Limiter = limiter.New(&unsure{b.store.Store, rng, failsOnce}, b.config)
		b.swap(t, combined)
		certain := limiter.New(b.store.Store, b.config)
		certain.Swap(compiled(t, combined))
		var all []*work
		admitted := map[string]int64{}
		adjusted := map[string]*adjust.Adjustment{} // by name and key
		now := func() algorithms.Micros { return b.now }
		for step := range 120 {
			b.now += algorithms.Micros(rng.Int64N(int64(3 * sec)))
			if rng.IntN(30) == 0 {
				b.now += algorithms.Micros(rng.Int64N(int64(70 * sec)))
			}
			if rng.IntN(10) == 0 {
				adjustAtRandom(rng, b.now, adjusted)
				set := adjust.NewSet(adjust.Head{}, slices.Collect(maps.Values(adjusted)))
				b.Adjust(set, now)
				certain.Adjust(set, now)
			}
			changeOf := func(name, key string) (c adjust.Change) {
				if a := adjusted[name+key]; a != nil && a.Expires > b.now {
					c = a.Change
				}
				return c
			}
			var w *work
			if last := len(all) - 1; last >= 0 && rng.IntN(2) == 0 {
				w = all[max(0, last-rng.IntN(12))]
			}
			switch {
			case w == nil:
				w = &work{isNamed: rng.IntN(2) == 0}
				if w.isNamed && rng.IntN(2) == 0 {
					w.id = fmt.Sprint(step)
				}
				for _, i := range rng.Perm(len(combinedNames))[:1+rng.IntN(4)] {
					w.costs = append(w.costs, limiter.NamedCharge{Name: combinedNames[i], Key: []string{strconv.Itoa(rng.IntN(2))}, Count: 1 + rng.Int64N(2)})
				}
				all = append(all, w)
			case w.begun && rng.IntN(2) == 0:
				b.ReturnSlots(w.slots, limiter.ReporterHTTP)
				w.held = nil
				continue
			case w.id == "":
				continue
			}
			c := w.call()
			err := b.Check(t.Context(), c)
			if w.stored && failsOnce == 0 && err == nil && (c.Denied || !c.Replayed) {
				t.Fatalf("seed %d, step %d: the repetition of %+v got %+v; want the stored answer", seed, step, w.costs, c.Verdict)
			}
			if err != nil || c.Denied || w.begun {
				continue
			}
			w.stored = w.isStored(c)
			for _, cost := range w.costs {
				if changeOf(cost.Name, cost.Key[0]).Block && !c.Replayed {
					t.Fatalf("seed %d, step %d: a request for %s %s was allowed in spite of a block", seed, step, cost.Name, cost.Key[0])
				}
			}
			w.begun, w.slots, w.held = true, w.slotsOf(b, c), map[string]algorithms.Micros{}
			for i := range c.Results {
				r := &c.Results[i]
				key := r.Policy.Name + w.costs[r.Descriptor].Key[0]
				if r.Policy.Limit.Kind == algorithms.Concurrency && !r.Policy.Shadow {
					w.held[key] = r.Decision.At + r.Policy.Limit.Period()
				}
				if rate, ok := windowRates[r.Policy.Name]; ok && r.Outcome == limiter.Allowed {
					if f := changeOf(r.Policy.Name, w.costs[r.Descriptor].Key[0]).Factor; f > 0 {
						rate = rate * int64(f) / 1000
					}
					if admitted[key] += r.Cost; admitted[key] > rate && !c.Replayed {
						t.Fatalf("seed %d, step %d: %d units of %s were admitted, at most %d may be", seed, step, admitted[key], key, rate)
					}
				}
			}
			for _, cost := range w.costs {
				if key := cost.Name + cost.Key[0]; w.held[key] > b.now {
					look := &limiter.Call{Request: limiter.Request{Domain: "d", Inspect: true, DryRun: true, Limits: []limiter.NamedCharge{{Name: cost.Name, Key: cost.Key}}}}
					if err := certain.Check(t.Context(), look); err != nil {
						t.Fatal(err)
					}
					d, units := look.Results[0], int64(0)
					for _, other := range all {
						if at := slices.IndexFunc(other.costs, func(c limiter.NamedCharge) bool { return c.Name+c.Key[0] == key }); at >= 0 && other.held[key] > b.now {
							units += other.costs[at].Count
						}
					}
					if stored := d.Policy.Limit.Capacity - d.Decision.Value; units > stored {
						t.Fatalf("seed %d, step %d: %d units of %s are in flight, %d are stored", seed, step, units, key, stored)
					}
				}
			}
		}
	}
}
