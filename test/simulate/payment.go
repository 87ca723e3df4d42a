package simulate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Requests of the domain "plans" have one or two limits. If these deny, credits pay for the request. Each
// request also has a bucket of its own, the witness, which shows the judge when a server charged it.

type payment struct {
	key   string
	units int64
}

func (p payment) String() string { return fmt.Sprintf("%d of %q", p.units, p.key) }

// pay sends a request that the limits allow or credits pay for. It may use an ID, and may then send the request again.
func (w *world) pay(rng *rand.Rand, id string, p *process, within time.Duration) {
	r := &request{id: id, domain: "plans", witness: "seen", costs: []cost{{"seen", id, 1}}}
	w.requests++
	key := strconv.Itoa(rng.IntN(2) * rng.IntN(2))
	if rng.IntN(4) > 0 {
		r.costs = append(r.costs, cost{"plan", key, 1 + rng.Int64N(4)})
	}
	if len(r.costs) == 1 || rng.IntN(2) == 0 {
		r.costs = append(r.costs, cost{"pace", key, 1 + rng.Int64N(4)})
	}
	rng.Shuffle(len(r.costs), func(i, j int) { r.costs[i], r.costs[j] = r.costs[j], r.costs[i] })
	if rng.IntN(2) == 0 {
		r.underID = true
		w.checkRepeatedly(rng, r, p, within)
		return
	}
	w.after(0, p, func() { p.deliver(rng, []*request{r}, within, nil) })
}

// pays checks the charges of a group with credits, by the states of its buckets before and after. If each
// bucket of the plan had enough units, the plan pays. Otherwise the credits pay the largest of the costs, or
// nothing is charged.
func (j *judge) pays(s *server, group []charge, before []algorithms.State, buckets []algorithms.Bucket, took bool) {
	left := func(i int, state algorithms.State) int64 {
		_, d := group[i].limit.Take(state, s.now(), algorithms.Charge{Hash: group[i].terms.Hash, DryRun: true})
		return d.Value / group[i].limit.Unit()
	}
	within, largest := true, int64(0)
	for i := range group {
		if c := &group[i]; c.then {
			within, largest = within && left(i, before[i]) >= c.terms.Cost, max(largest, c.terms.Cost)
		}
	}
	var paid []payment
	var witness *bucket
	for i := range group {
		c, want := &group[i], int64(0)
		instead := i > 0 && group[i-1].then && !c.then
		key, had := bucketOf(c.key), left(i, before[i])
		units, of := had-left(i, buckets[i].State), j.bucket(key)
		of.decidedBy(c.limit)
		switch {
		case took && c.then && within, took && !c.then && !instead:
			want = c.terms.Cost
		case took && instead && !within:
			want = largest
		}
		if units != want {
			j.fail("%q was charged %d, want %d: the group was allowed %v, the plan has enough %v", key, units, want, took, within)
		}
		of.name = c.key
		if of.charged += units; of.first == 0 {
			of.first = s.now()
		}
		of.last = s.now()
		if !c.then && !instead {
			witness = of
		} else if units != 0 {
			paid = append(paid, payment{key, units})
		}
		j.w.mix(uint64(units))
		if j.w.log != nil {
			j.w.note("%s: %q cost %d: charged %d of %d", s.name, key, c.terms.Cost, units, had)
		}
	}
	switch {
	case !took:
		j.w.seen(sawCreditsDenied)
	case witness == nil:
		j.fail("a group with credits has no witness")
	default:
		witness.payments = append(witness.payments, paid)
	}
}

// namesPayer records the buckets that paid for a request, according to an answer.
func (j *judge) namesPayer(r *request, c *limiter.Call) {
	var paid []payment
	for i := range c.Results {
		is := &c.Results[i]
		if is.For != nil {
			j.w.seen(sawCredits)
			if c.Replayed {
				j.w.seen(sawCreditsReplayed)
			}
			if is.Cost == 0 {
				j.w.seen(sawCreditsForTwo)
			}
		}
		if r.costs[is.Descriptor].limit != "seen" && is.Cost > 0 {
			paid = append(paid, payment{string(is.Key), is.Cost})
		}
	}
	r.paid = append(r.paid, paid)
}

// paid checks at the end that each answer named the buckets that the servers charged for the request.
func (j *judge) paid(r *request) {
	b := j.named[cost{limit: "seen", value: r.id}]
	if b == nil || !r.allowed {
		return
	}
	sorted := func(all []payment) string {
		all = slices.Clone(all)
		slices.SortFunc(all, func(x, y payment) int { return strings.Compare(x.key, y.key) })
		return fmt.Sprint(all)
	}
	for _, named := range r.paid {
		if !slices.ContainsFunc(b.payments, func(paid []payment) bool { return sorted(paid) == sorted(named) }) {
			j.fail("request %s: an answer names %v, the servers charged %v", r.id, named, b.payments)
		}
	}
}
