package limiter_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

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

// Requests combine limits of all kinds at random. They are repeated under their ids, the store fails, and slots are returned
// and expire. Who was allowed holds the slot that the answer names, and no window admits more than its rate.
func TestCombinationsOfLimitsExceedNone(t *testing.T) {
	for seed := range uint64(800) {
		rng := rand.New(rand.NewPCG(seed, 1))
		b := newBench(t, combined)
		b.Limiter = limiter.New(&unsure{b.store.Store, rng, []int{0, 0, 30, 8}[rng.IntN(4)]}, b.config)
		b.swap(t, combined)
		certain := limiter.New(b.store.Store, b.config)
		certain.Swap(compiled(t, combined))
		var all []*work
		admitted := map[string]int64{}
		for step := range 120 {
			b.now += algorithms.Micros(rng.Int64N(int64(3 * sec)))
			if rng.IntN(30) == 0 {
				b.now += algorithms.Micros(rng.Int64N(int64(70 * sec)))
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
				b.ReturnSlots(w.slots, limiter.DoorHTTP)
				w.held = nil
				continue
			case w.id == "":
				continue
			}
			c := w.call()
			if err := b.Check(t.Context(), c); err != nil || c.Denied || w.begun {
				continue
			}
			w.begun, w.slots, w.held = true, w.slotsOf(b, c), map[string]algorithms.Micros{}
			for i := range c.Results {
				r := &c.Results[i]
				key := r.Policy.Name + w.costs[r.Descriptor].Key[0]
				if r.Policy.Limit.Kind == algorithms.Concurrency && !r.Policy.Shadow {
					w.held[key] = r.Decision.At + r.Policy.Limit.Period()
				}
				if rate, ok := windowRates[r.Policy.Name]; ok && r.Outcome == limiter.Allowed {
					if admitted[key] += r.Cost; admitted[key] > rate {
						t.Fatalf("seed %d, step %d: %d units of %s were admitted, at most %d may be", seed, step, admitted[key], key, rate)
					}
				}
			}
			for _, cost := range w.costs {
				if key := cost.Name + cost.Key[0]; w.held[key] > b.now {
					look := &limiter.Call{Request: limiter.Request{Domain: "d", DryRun: true, Limits: []limiter.NamedCharge{{Name: cost.Name, Key: cost.Key}}}}
					if err := certain.Check(t.Context(), look); err != nil {
						t.Fatal(err)
					}
					d, units := look.Results[0], int64(0)
					for _, other := range all {
						if at := slices.IndexFunc(other.costs, func(c limiter.NamedCharge) bool { return c.Name+c.Key[0] == key }); at >= 0 && other.held[key] > b.now {
							units += other.costs[at].Count
						}
					}
					if stored := d.Policy.Limit.Capacity - d.Decision.Value; units > min(stored, d.Policy.Limit.Capacity) {
						t.Fatalf("seed %d, step %d: %d units of %s are in flight, %d are stored", seed, step, units, key, stored)
					}
				}
			}
		}
	}
}
