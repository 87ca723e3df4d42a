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

// Requests of the domain "plans" have one or two limits. If these deny, credits pay for the request. A request may also
// name the credits themselves, to consume them or to top them up, and may name a limit twice, with a refund. Each
// request also has a bucket of its own, the witness, which shows the judge when a server charged it.

type payment struct {
	key   string
	units int64
}

func (p payment) String() string { return fmt.Sprintf("%d of %q", p.units, p.key) }

// pay sends a request that the limits allow or credits pay for. It may use an ID, and may then send the request again.
func (w *world) pay(rng *rand.Rand, id string, p *process, within time.Duration) {
	r := &request{id: id, domain: "plans", witness: "seen", costs: []cost{{limit: "seen", value: id, units: 1}}}
	w.requests++
	key := strconv.Itoa(rng.IntN(2) * rng.IntN(2))
	if rng.IntN(4) > 0 {
		r.costs = append(r.costs, cost{limit: "plan", value: key, units: 1 + rng.Int64N(4)})
	}
	if len(r.costs) == 1 || rng.IntN(2) == 0 {
		r.costs = append(r.costs, cost{limit: "pace", value: key, units: 1 + rng.Int64N(4)})
	}
	r.underID = rng.IntN(2) == 0
	if rng.IntN(4) == 0 { // the limit again, mostly a refund
		r.costs = append(r.costs, cost{limit: r.costs[1].limit, value: key, units: rng.Int64N(5) - 3})
	}
	if r.underID && rng.IntN(2) == 0 { // only requests for named limits can name credits
		if rng.IntN(4) == 0 {
			r.costs = r.costs[:1]
		}
		r.costs = append(r.costs, cost{limit: "credits", value: key, units: rng.Int64N(12) - 6})
		w.seen(sawCreditsNamed)
	}
	rng.Shuffle(len(r.costs), func(i, j int) { r.costs[i], r.costs[j] = r.costs[j], r.costs[i] })
	if r.underID {
		w.checkRepeatedly(rng, r, p, within)
		return
	}
	w.after(0, p, func() { p.deliver(rng, []*request{r}, within, nil) })
}

// plansGroup reports whether a group is of the domain "plans".
func plansGroup(group []charge) bool {
	return strings.Contains(group[0].key, "plans") && group[0].limit != resetMark
}

// row is what the judge knows of a group of the domain "plans".
type row struct {
	within  bool  // each limit of the plan has enough units, and so have the credits for their own cost
	largest int64 // the largest cost of the plan
	has     []int64
}

func (j *judge) rowOf(s *server, group []charge, before []algorithms.State) (r row) {
	r.within = true
	for i := range group {
		c := &group[i]
		r.has = append(r.has, unitsIn(s, c, before[i]))
		if c.then {
			r.within, r.largest = r.within && r.has[i] >= c.terms.Cost, max(r.largest, c.terms.Cost)
		}
	}
	return r
}

func unitsIn(s *server, c *charge, state algorithms.State) int64 {
	_, d := c.limit.Take(state, s.now(), algorithms.Charge{Hash: c.terms.Hash, DryRun: true})
	unit := c.limit.Unit()
	return (d.Value - ((d.Value%unit)+unit)%unit) / unit // rounded down, also below 0, where a smaller limit may find it
}

// cost returns what charge i of group costs its bucket if the group is allowed. If each bucket of the plan had enough
// units, the plan pays. Otherwise the credits pay the largest of its costs. The own cost of the credits is
// charged in any case.
func (r *row) cost(group []charge, i int) int64 {
	c := &group[i]
	switch instead := i > 0 && group[i-1].then && !c.then; {
	case c.then && !r.within:
		return 0
	case instead && r.within && c.own == nil:
		return 0
	case instead && r.within:
		return c.own.Cost
	case instead && c.own != nil:
		return c.own.Cost + r.largest
	case instead:
		return r.largest
	default:
		return c.terms.Cost
	}
}

// pays checks the charges of a group of the domain "plans", by the states of its buckets before and after.
func (j *judge) pays(s *server, group []charge, before []algorithms.State, buckets []algorithms.Bucket, took bool) {
	r := j.rowOf(s, group, before)
	should := true
	for i := range group {
		if cost := r.cost(group, i); cost > 0 {
			should = should && r.has[i] >= cost
		}
	}
	if took != should {
		j.fail("a group of plans was allowed %v, want %v: %+v of %v", took, should, group, r.has)
	}
	var paid []payment
	var witness *bucket
	for i := range group {
		c, want := &group[i], int64(0)
		if took {
			want = r.cost(group, i)
		}
		key, had := bucketOf(c.key), r.has[i]
		left := unitsIn(s, c, buckets[i].State)
		units, of := had-left, j.bucket(key)
		of.decidedBy(c.limit)
		isCut := want < 0 && units <= 0 && left == c.limit.Capacity // a refund fills the bucket at most
		if units != want && !isCut {
			j.fail("%q was charged %d, want %d: the group was allowed %v, the plan has enough %v", key, units, want, took, r.within)
		}
		of.name = c.key
		if of.charged += units; of.first == 0 {
			of.first = s.now()
		}
		of.returned += max(0, -units)
		of.last = s.now()
		switch {
		case strings.Contains(key, "seen"):
			witness = of
		case want != 0:
			paid = append(paid, payment{key, want})
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
	}
	r.paid = append(r.paid, slices.DeleteFunc(sumsOf(c), func(p payment) bool { return p.units == 0 || strings.Contains(p.key, "seen") }))
}

// sumsOf returns the sum of the costs of each bucket in an answer.
func sumsOf(c *limiter.Call) (sums []payment) {
	for i := range c.Results {
		is := &c.Results[i]
		at := slices.IndexFunc(sums, func(p payment) bool { return p.key == string(is.Key) })
		if at < 0 {
			at = len(sums)
			sums = append(sums, payment{key: string(is.Key)})
		}
		sums[at].units += is.Cost
	}
	return sums
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
