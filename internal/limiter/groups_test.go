package limiter_test

import (
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const debts = `
domain: d
hash_tag: domain
limits:
  debt: {algorithm: token_bucket, rate: 60, period: 1m, capacity: 100, overdraw: true, max_reserved: 1000}
  day: {algorithm: fixed_window, rate: 50, period: 1d, start: 2026-01-01T00:00:00Z, overdraw: true, max_reserved: 200}
  other: {algorithm: token_bucket, rate: 6, period: 1m, capacity: 5}
  strict: {algorithm: token_bucket, rate: 1, period: 1m, capacity: 1, penalty: {after: 2, for: 1m, max: 2m}}
`

func named(name string, cost int64) limiter.NamedCharge {
	return limiter.NamedCharge{Name: name, Count: cost}
}

// The retry time of a denied group is exact for the same request alone, although each denial is charged to the
// limits with overdraw.
func TestTheRetryTimeOfAGroupWithOverdrawIsExact(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		b := newBench(t, debts)
		denied := 0
		for step := range 60 {
			request := []limiter.NamedCharge{named("debt", 1+rng.Int64N(100))}
			if rng.IntN(2) == 0 {
				request = append(request, named("day", 1+rng.Int64N(50)))
			}
			request = append(request, named("other", rng.Int64N(6)))
			rng.Shuffle(len(request), func(i, j int) { request[i], request[j] = request[j], request[i] })
			c := b.together(t, "bob", request...)
			for tries := 0; c.Denied; tries++ {
				if denied++; c.RetryAfter <= 0 || tries > 0 && rng.IntN(2) == 0 {
					t.Fatalf("seed %d, step %d: %v at the time of the retry: %+v; want allowed", seed, step, request, c.Verdict)
				}
				b.now += c.RetryAfter - 1
				if check := b.checked(t, request); !check.Denied {
					t.Fatalf("seed %d, step %d: %v 1 us before the retry: %+v; want denied, as it was: %+v", seed, step, request, check.Results, c.Results)
				}
				b.now++
				c = b.together(t, "bob", request...)
			}
			b.now += algorithms.Micros(rng.Int64N(int64(20 * sec)))
		}
		if denied < 5 {
			t.Errorf("seed %d: %d denials, want at least 5", seed, denied)
		}
	}
}

const modelled = `
domain: d
hash_tag: entry:user
limits:
  plan: {algorithm: token_bucket, rate: 10, period: 1m, max_reserved: 3, then: credits}
  pace: {algorithm: fixed_window, rate: 8, period: 10s, max_reserved: 0, start: 2026-01-01T00:00:00Z, then: credits}
  credits: {algorithm: token_bucket, rate: 6, period: 1m, capacity: 15, max_reserved: 2}
  other: {algorithm: token_bucket, rate: 100, period: 1m, capacity: 20, max_reserved: 5}
descriptors:
  - key: user
    descriptors:
      - {key: plan, value: x, limit: plan}
      - {key: pace, value: x, limit: pace}
      - {key: other, value: x, limit: other}
`

// model is the reference implementation for requests that name limits, their payers, or both. It tries on copies
// whether all limits with their payers' own costs are allowed, and then whether the payer is allowed alone.
type model struct {
	limits    map[string]*algorithms.Limit
	buckets   map[string]algorithms.State
	now       algorithms.Micros
	unlimited string // the limit that an operator made unlimited; "" means none
	blocked   string // the limit whose key an operator blocks
}

// take charges request, if it is allowed at m.now, and charge is true.
func (m *model) take(request []limiter.NamedCharge, charge bool) (allowed bool) {
	row, reserve := map[string]int64{}, map[string]bool{}
	for _, n := range request {
		if n.Count >= 0 && n.Name == m.blocked {
			return false
		}
		if n.Count >= 0 && n.Name == m.unlimited {
			continue
		}
		_, again := row[n.Name]
		row[n.Name] += n.Count
		reserve[n.Name] = n.Reserve && (!again || reserve[n.Name])
	}
	pays := int64(0)
	for _, name := range []string{"plan", "pace"} {
		if pays = max(pays, row[name]); row[name] > 0 && m.unlimited == "credits" {
			delete(row, name)
		}
	}
	credits := maps.Clone(row)
	if pays > 0 && m.blocked != "credits" && m.unlimited != "credits" {
		maps.DeleteFunc(credits, func(name string, cost int64) bool { return cost > 0 && (name == "plan" || name == "pace") })
		credits["credits"] += pays
	}
	for _, costs := range []map[string]int64{row, credits} {
		next, all := map[string]algorithms.State{}, true
		for name, cost := range costs {
			a := algorithms.Charge{Cost: cost, Reserve: reserve[name] && costs[name] == row[name]} // what credits pay is not reserved
			state, d := m.limits[name].Take(m.buckets[name], m.now, a)
			next[name], all = state, all && d.Allowed
		}
		if !all {
			continue
		}
		for name, state := range next {
			if charge {
				m.buckets[name] = state
			}
		}
		return true
	}
	return false
}

func (m *model) allows(request []limiter.NamedCharge, at algorithms.Micros) bool {
	copied := *m
	copied.now = at
	return copied.take(request, false)
}

// Requests name limits and their payers in every order, with refunds and reservations, once or very often, while an
// operator changes limits and resets buckets. Each is decided as the model does, and told the exact time of the retry; a
// dry run is answered alike.
func TestGroupsAgreeWithAModel(t *testing.T) {
	allowed, denied, by := 0, 0, 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		b := newBench(t, modelled)
		m, keys := &model{limits: map[string]*algorithms.Limit{}, buckets: map[string]algorithms.State{}, now: b.now}, map[string][]byte{}
		for name, p := range b.Current().Domains["d"].Named {
			m.limits[name], keys[name] = p.Limit, b.named(t, name, 0, "bob").Results[0].Key
		}
		for step := range 60 {
			if seed%2 == 0 && step%6 == 0 { // the last adjustment is in force for a minute
				m.adjust(b, rng)
			}
			if rng.IntN(20) == 0 {
				name := modelNames[rng.IntN(4)]
				delete(m.buckets, name)
				if err := backend.ResetBucket(t.Context(), b.store, backend.Charge{Key: keys[name], Limit: m.limits[name]}); err != nil {
					t.Fatal(err)
				}
			}
			request := someCharges(rng, seed%3 == 0)
			check := b.checked(t, request)
			var c *limiter.Call
			if seed%3 == 0 { // a proxy, which cannot name the payer
				c = b.batched(t, request)
			} else {
				c = b.together(t, "bob", request...)
			}
			want := m.take(request, true)
			if c.Denied == want || check.Denied == want || c.RetryAfter != check.RetryAfter || c.Never != check.Never {
				t.Fatalf("seed %d: %v: got %+v, a dry run %+v; want allowed %t", seed, request, c.Verdict, check.Verdict, want)
			}
			if want {
				allowed++
			} else if denied++; seed%2 > 0 {
				exactRetry(t, m, request, c)
			}
			for i := range c.Results {
				if c.Results[i].For != nil && want {
					by++
				}
			}
			for name, l := range m.limits {
				_, d := l.Take(m.buckets[name], m.now, algorithms.Charge{DryRun: true})
				dryRun, got := []backend.Charge{{Key: keys[name], Limit: l, Terms: algorithms.Charge{DryRun: true}}}, make([]backend.Decision, 1)
				if backend.Take(t.Context(), b.store, dryRun, got); got[0].Value != d.Value {
					t.Fatalf("seed %d: %s after %v: holds %d, want %d: %+v", seed, name, request, got[0].Value, d.Value, c.Results)
				}
			}
			b.now += algorithms.Micros(rng.Int64N(int64(6 * sec)))
			m.now = b.now
		}
	}
	if allowed < 2000 || denied < 2000 || by < 500 {
		t.Errorf("%d allowed, %d denied, %d paid by credits; want at least 2000, 2000 and 500", allowed, denied, by)
	}
}

var modelNames = []string{"plan", "pace", "other", "credits"}

// adjust makes one limit unlimited, blocked, or no limit.
func (m *model) adjust(b *bench, rng *rand.Rand) {
	name, change := modelNames[rng.IntN(4)], adjust.Change{}
	m.unlimited, m.blocked = "", ""
	switch rng.IntN(4) {
	case 0:
		change.Unlimited, m.unlimited = true, name
	case 1:
		change.Block, m.blocked = true, name
	default:
		b.Adjust(nil, nil)
		return
	}
	b.adjust(name, map[string]adjust.Change{"bob": change})
}

func (b *bench) checked(t *testing.T, request []limiter.NamedCharge) *limiter.Call {
	t.Helper()
	r := keyed("bob", request)
	r.DryRun = true
	return b.check(t, r)
}

// exactRetry checks the retry time of a denied request by the model.
func exactRetry(t *testing.T, m *model, request []limiter.NamedCharge, c *limiter.Call) {
	t.Helper()
	if c.Never && m.allows(request, m.now+100*algorithms.Day) {
		t.Fatalf("%v is never allowed by its answer, but allowed later: %+v", request, c.Verdict)
	}
	if at := m.now + c.RetryAfter; !c.Never && (m.allows(request, at-1) || !m.allows(request, at)) {
		t.Fatalf("%v: %d us is not the exact time of the retry: %+v", request, c.RetryAfter, c.Verdict)
	}
}

// someCharges returns a few charges, or more than are compared one by one. proxied means that none is of the payer.
func someCharges(rng *rand.Rand, proxied bool) (request []limiter.NamedCharge) {
	names := modelNames
	if proxied {
		names = names[:3]
	}
	for range 1 + rng.IntN(4) {
		n := named(names[rng.IntN(len(names))], rng.Int64N(12)-3)
		n.Reserve = !proxied && rng.IntN(3) == 0
		request = append(request, n)
	}
	if rng.IntN(4) == 0 {
		for range 20 {
			request = append(request, named(names[rng.IntN(len(names))], rng.Int64N(3)-1))
		}
	}
	return request
}

// batched sends request as the descriptors of one call, which is answered in a Batch.
func (b *bench) batched(t *testing.T, request []limiter.NamedCharge) *limiter.Call {
	t.Helper()
	c := &limiter.Call{}
	c.Request.Domain = "d"
	for _, n := range request {
		d := c.AddDescriptor()
		d.Entries, d.Cost = []descriptors.Entry{{Key: "user", Value: "bob"}, {Key: n.Name, Value: "x"}}, n.Count
	}
	batch, done := b.NewBatch(), make(chan bool, 1)
	if planned, err := batch.Add(c); !planned || err != nil {
		t.Fatalf("planned %t, %v", planned, err)
	}
	batch.Submit(time.Time{}, nil, func() { done <- true })
	<-done
	batch.Finish(c)
	return c
}

// While the store is down, a cost may be more than this process's own bucket can hold. The limit itself can hold 8, so the
// failure denies a cost of 3.
func TestACostBeyondTheLocalShareBesideAnAdjustment(t *testing.T) {
	b := newBench(t, `
domain: d
limits:
  tuned: {algorithm: token_bucket, rate: 10, period: 1m}
descriptors:
  - {key: user, rate_limit: {algorithm: fixed_window, rate: 8, period: 1d, on_backend_failure: local, local_share: 25%}}
`)
	b.adjust("tuned", map[string]adjust.Change{"bob": {Block: true}})
	b.store.err = backend.ErrUnavailable
	for cost, never := range map[int64]bool{3: false, 9: true} {
		if c := b.send(t, cost, "user=ann"); !c.Denied || !c.Failed || c.Never != never || c.RetryAfter != 0 {
			t.Errorf("a cost of %d: got %+v; want a denial without a retry time, never: %v", cost, c.Verdict, never)
		}
	}
}

// Two parts of a request have one bucket, and credits pay for both. The reservation has two equal parts, so that each is
// settled.
func TestCreditsPaidForTwoPartsAreSettledForBoth(t *testing.T) {
	p := newProxy(t)
	p.swap(t, settledPlans+"descriptors:\n  - {key: user, limit: plan}\n")
	id := p.start(60, "user=bob", "user=bob") // 120 units, more than the plan can hold
	p.want("prepaid", "bob", 380)
	p.done(id, 20)
	p.want("prepaid", "bob", 460)
	p.want("plan", "bob", 100)

	b := newBench(t, settledPlans)
	twice := limiter.NamedCharge{Name: "plan", Count: 60, Reserve: true}
	c := b.together(t, "bob", twice, twice)
	if part, ok := c.Part(0, ""); !ok || part.Count != 120 || part.Times != 2 {
		t.Errorf("got %+v; want 120 units in two parts", part)
	}
	if part, ok := c.Part(1, ""); ok {
		t.Errorf("got %+v; want one part for both", part)
	}
}
