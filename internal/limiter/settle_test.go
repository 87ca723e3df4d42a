package limiter_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

const sec = algorithms.Second

func (b *bench) jobs(tb testing.TB, numbers string) {
	tb.Helper()
	b.swap(tb, "domain: d\nlimits:\n  jobs: {"+numbers+"}\n")
}

func (b *bench) consume(tb testing.TB, count int64, reserve bool) (*limiter.Call, bool) {
	tb.Helper()
	c := b.check(tb, limiter.Request{Domain: "d", Limits: []limiter.NamedCharge{{Name: "jobs", Count: count, Reserve: reserve}}})
	return c, !c.Denied
}

func reservedBy(c *limiter.Call) (*limiter.Reserved, bool) {
	part, ok := c.Part(0, "")
	return &limiter.Reserved{ID: [16]byte{1}, Domain: limiter.PrefixNumber("d"), Parts: []limiter.ReservedPart{part}}, ok
}

// cancel settles r with a cost of 0.
func (b *bench) cancel(tb testing.TB, r *limiter.Reserved) {
	tb.Helper()
	c := &limiter.Call{}
	if err := b.Settle(tb.Context(), c, limiter.Settle{Reserved: r}); err != nil || c.Denied {
		tb.Fatalf("cancelled: %v, denied %t; want no error and allowed", err, c.Denied)
	}
}

func (b *bench) remaining(tb testing.TB) int64 {
	tb.Helper()
	c, _ := b.consume(tb, 0, false)
	return c.Results[0].Decision.Remaining
}

// A settlement consists of a group for each of its buckets. It counts as repeated (Replayed) if one of them was settled
// before.
func TestAnAnswerIsRepeatedIfOneOfItsGroupsIs(t *testing.T) {
	b := newBench(t, `
domain: d
limits:
  one: {algorithm: token_bucket, rate: 100, period: 1d}
  two: {algorithm: token_bucket, rate: 100, period: 1d}
`)
	parts := func(names ...string) *limiter.Reserved {
		r := &limiter.Reserved{ID: [16]byte{1}, Domain: limiter.PrefixNumber("d")}
		for _, name := range []string{"one", "two"} {
			part := limiter.PartOf(b.Current().Domains["d"].Named[name], limiter.ByName{Name: name}, 10, b.now)
			part.Number = len(r.Parts)
			r.Parts = append(r.Parts, part)
		}
		r.Parts = slices.DeleteFunc(r.Parts, func(p limiter.ReservedPart) bool { return !slices.Contains(names, p.Name) })
		return r
	}
	settle := func(names ...string) *limiter.Call {
		c := &limiter.Call{}
		if err := b.Settle(t.Context(), c, limiter.Settle{Reserved: parts(names...), Real: 12}); err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := settle("one"); c.Replayed {
		t.Error("the first settlement counts as repeated")
	}
	if c := settle("one", "two"); !c.Replayed {
		t.Error("a settlement of which one part was settled before does not count as repeated")
	}
}

func TestAReservationExpiresExactly(t *testing.T) {
	for wait, want := range map[algorithms.Micros]error{limiter.Within - 1: nil, limiter.Within: limiter.ErrExpired} {
		b := newBench(t, "domain: d\ndescriptors: []\n")
		b.jobs(t, "algorithm: token_bucket, rate: 10, period: 1d")
		call, _ := b.consume(t, 5, false)
		r, _ := reservedBy(call)
		b.now += wait
		if err := b.Settle(t.Context(), &limiter.Call{}, limiter.Settle{Reserved: r}); !errors.Is(err, want) {
			t.Errorf("after %d us: got the error %v, want %v", wait, err, want)
		}
	}
}

func TestALimitThatCameWithItsRequestIsSettledByItself(t *testing.T) {
	b := newBench(t, "domain: d\ndescriptors: []\n")
	b.jobs(t, "algorithm: token_bucket, rate: 10, period: 1d")
	configured := b.Current().Domains["d"].Named["jobs"]
	own := *configured
	part := limiter.PartOf(&own, limiter.ByName{Name: "jobs", Config: "its configuration"}, 5, b.now)
	r, c := &limiter.Reserved{ID: [16]byte{1}, Domain: limiter.PrefixNumber("d"), Parts: []limiter.ReservedPart{part}}, &limiter.Call{}
	inline := func(_, _, _ string) (*limiter.Policy, error) { return &own, nil }
	if err := b.Settle(t.Context(), c, limiter.Settle{Reserved: r, Real: 5, Inline: inline}); err != nil || c.Results[0].Policy != &own {
		t.Errorf("error %v; want the limit that came with the request", err)
	}
}

func TestOnlyUnitsOfTheStoreAreSettled(t *testing.T) {
	for name, c := range map[string]struct {
		numbers string
		cost    int64
		err     error
		want    bool
	}{
		"reserved":         {"on_backend_failure: allow", 2, nil, true},
		"nothing reserved": {"on_backend_failure: allow", 0, nil, true},
		"refunded":         {"on_backend_failure: allow", -2, nil, false},
		"no decision":      {"on_backend_failure: allow", 2, backend.ErrUnavailable, false},
		"a local bucket":   {"on_backend_failure: local, local_share: 100%", 2, backend.ErrUnavailable, false},
	} {
		b := newBench(t, "domain: d\ndescriptors: []\n")
		b.jobs(t, "algorithm: token_bucket, rate: 10, period: 1h, "+c.numbers)
		b.store.err = c.err
		call, allowed := b.consume(t, c.cost, false)
		if r, ok := reservedBy(call); !allowed || call.IsDone() || ok != c.want || ok && r.Parts[0].Count != c.cost {
			t.Errorf("%s: allowed %t, reserved %t %+v; want allowed, and reserved %t", name, allowed, ok, r.Parts, c.want)
		}
	}
}

// The store recognizes a repeated settlement by the id of the reservation and the real cost.
// The inflow of a bucket at an answer that is repeated after a reload is not known any more. Other answers have it, whatever the
// clock of the store shows.
func TestThePartOfARepeatedReservation(t *testing.T) {
	b := newBench(t, "domain: d\n")
	b.restart(t, "domain: d\n", func(c *limiter.Config) { c.Now = func() algorithms.Micros { return b.now + minute } })
	reserve := func(id string, count int64) limiter.ReservedPart {
		c, err := b.once(t, "d", id, limiter.NamedCharge{Name: "jobs", Count: count, Reserve: true})
		part, ok := c.Part(0, "")
		if err != nil || !ok {
			t.Fatalf("error %v, %+v", err, c.Verdict)
		}
		return part
	}
	b.jobs(t, "algorithm: token_bucket, rate: 10, period: 1m, capacity: 100")
	first := reserve("1", 15)
	b.now += sec / 2
	b.jobs(t, "algorithm: token_bucket, rate: 10, period: 1m, capacity: 100")
	if again := reserve("1", 15); again.Inflow == first.Inflow || again.Inflow.Units != 1<<53 {
		t.Errorf("got the inflow %+v, want one faster than any", again.Inflow)
	}
	if next := reserve("2", 85); next.Inflow != first.Inflow || next.Wait != 0 {
		t.Errorf("got %+v, want the inflow %+v", next, first.Inflow)
	}
	if next := reserve("3", 10); next.Wait != minute-sec/2 {
		t.Errorf("got %+v, want a wait for the 10 units that are missing", next)
	}
}

func TestTheChargeOfASettlement(t *testing.T) {
	b := newBench(t, "domain: d\nhash_tag: domain\nlimits:\n  jobs: {algorithm: token_bucket, rate: 10, period: 1d}\n")
	jobs := b.Current().Domains["d"].Named["jobs"]
	rec := &recorded{Store: b.store.Store}
	b.store.Store = rec
	part := limiter.PartOf(jobs, limiter.ByName{Name: "jobs", Values: []string{"bob"}}, 5, b.now)
	r := &limiter.Reserved{ID: [16]byte{1, 2, 3, 15: 4}, Domain: limiter.PrefixNumber("d"), Parts: []limiter.ReservedPart{part}}
	if err := b.Settle(t.Context(), &limiter.Call{}, limiter.Settle{Reserved: r, Real: 7}); err != nil || len(rec.charges) != 1 {
		t.Fatalf("error %v, %d charges; want one charge", err, len(rec.charges))
	}
	c := &rec.charges[0]
	if want := [32]byte{1, 2, 3, 15: 4, 23: 7}; c.IdempotencyKey.Digest != want {
		t.Errorf("digest %x, want the id and the cost", c.IdempotencyKey.Digest)
	}
	if want := jobs.SlotOfKey([]string{"bob"}); want == 0 || c.Slot != want || c.Terms.Cost != 2 {
		t.Errorf("slot %x, cost %d; want slot %x and cost 2", c.Slot, c.Terms.Cost, want)
	}
}

// The units of a bucket that was reset are there again, so those of a reservation from before are not.
func TestAResetForgetsReservations(t *testing.T) {
	b := newBench(t, "domain: d\n")
	b.jobs(t, "algorithm: token_bucket, rate: 10, period: 1d")
	call, _ := b.consume(t, 5, true)
	r, _ := reservedBy(call)
	b.now += sec
	if err := b.Reset(t.Context(), &limiter.Call{Request: limiter.Request{Domain: "d", Limits: []limiter.NamedCharge{{Name: "jobs"}}}}); err != nil {
		t.Fatal(err)
	}
	b.consume(t, 4, false)
	b.cancel(t, r)
	if n := b.remaining(t); n != 6 {
		t.Errorf("%d are left after 4 of 10, want 6", n)
	}
}

func TestABlockAllowsSettlements(t *testing.T) {
	b := newBench(t, "domain: d\ndescriptors: []\n")
	b.jobs(t, "algorithm: token_bucket, rate: 10, period: 1d")
	call, _ := b.consume(t, 5, false)
	r, _ := reservedBy(call)
	b.adjust("jobs", map[string]adjust.Change{"*": {Block: true}})
	c := &limiter.Call{}
	if err := b.Settle(t.Context(), c, limiter.Settle{Reserved: r, Real: 7}); err != nil || c.Denied || c.Results[0].Decision.Blocked != 0 || c.Snapshot == nil {
		t.Errorf("error %v, %+v; want allowed", err, c.Verdict)
	}
	inspected := &limiter.Call{Request: limiter.Request{Domain: "d", Inspect: true, Limits: []limiter.NamedCharge{{Name: "jobs", Count: 2}}}}
	if err := b.Check(t.Context(), inspected); err != nil || inspected.Results[0].Decision.Allowed || inspected.Results[0].Decision.Remaining != 0 || inspected.Results[0].Decision.Blocked != minute {
		t.Errorf("error %v, %+v; want a blocked bucket with nothing remaining", err, inspected.Results)
	}
	b.now += minute
	if n := b.remaining(t); n != 3 {
		t.Errorf("%d are left after the settlement, want 3", n)
	}
}
