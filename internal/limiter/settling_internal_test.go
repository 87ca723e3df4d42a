package limiter

import (
	"fmt"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/scaled"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Each part of each reservation is settled once, so each needs an IdempotencyID of its own. Reservations of two
// domains may have one ID.
func TestEachPartHasItsOwnSettlement(t *testing.T) {
	seen := map[[16]byte]string{}
	for _, domain := range []string{"a", "b"} {
		for _, id := range [][16]byte{{}, {1}, {15: 1}, {7: 1, 15: 1}} {
			for number := range 100 {
				c := &Call{Verdict: Verdict{Domain: &Domain{Name: domain}}}
				is := fmt.Sprint(domain, id, number)
				of := c.settlementID(&id, &ReservedPart{Number: number}, &Result{})
				if was := seen[of]; was != "" {
					t.Fatalf("%s and %s have one IdempotencyID", was, is)
				}
				seen[of] = is
			}
		}
	}
}

func TestSettlementsOfIDsWithoutNumbers(t *testing.T) {
	id := [16]byte{1}
	c := &Call{Verdict: Verdict{Domain: &Domain{Name: "d"}}, config: &Config{}}
	check := func(name string, p *Policy, part string) {
		t.Helper()
		got := c.settlementID(&id, &ReservedPart{Number: -1}, &Result{Policy: p})
		if want := IdempotencyID("d", "settle "+string(id[:]), part); got != want {
			t.Errorf("%s: got %x, want %x, the ID of part %s", name, got, want, part)
		}
	}
	check("charged with others", &Policy{}, "0")
	c.config = &Config{Modes: Modes{Quota: true}}
	check("quota mode of the process", &Policy{}, "1")
	c.config = &Config{}
	for name, p := range map[string]*Policy{
		"shadow": {Shadow: true}, "quota": {Quota: true}, "unlimited": {Unlimited: true},
	} {
		check(name, p, "1")
	}
}

func compiled(t *testing.T, s algorithms.Spec) *algorithms.Limit {
	t.Helper()
	l, err := algorithms.Compile(s)
	if err != nil {
		t.Fatal(err)
	}
	return &l
}

func TestTimesOfUndos(t *testing.T) {
	slow := compiled(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: algorithms.Second})
	none := compiled(t, algorithms.Spec{Kind: algorithms.TokenBucket, Period: algorithms.Second})
	fast := scaled.Inflow{Units: 10, Span: int64(algorithms.Second)}
	const at = 1_767_225_600 * algorithms.Second
	for _, c := range []struct {
		name      string
		chargedAt algorithms.Micros
		former    scaled.Inflow
		l         *algorithms.Limit
		same      bool
	}{
		{"a lower rate", at, fast, slow, false},
		{"a lower rate, an unknown time", 0, fast, slow, true},
		{"rate 0", at, fast, none, true},
		{"an unknown rate", at, scaled.Inflow{}, slow, true},
		{"no span", at, scaled.Inflow{Units: 1}, slow, true},
	} {
		if got := undoTime(c.chargedAt, at+algorithms.Second, c.former, c.l); (got == c.chargedAt) != c.same || got > c.chargedAt {
			t.Errorf("%s: got %d for a charge at %d; want the same time: %t, otherwise an earlier one", c.name, got, c.chargedAt, c.same)
		}
	}
}

// The part consists of 3 equal charges. A real cost of -1 means that the proxy did not report it. Then the
// configured unknown_cost applies, or else the cost is what was reserved, and at least the first of learned estimates.
func TestRealCosts(t *testing.T) {
	part := &ReservedPart{Count: 30, Times: 3}
	for _, c := range []struct {
		terms      *SettleTerms
		real, want int64
	}{
		{nil, 7, 21}, {nil, 0, 0}, {nil, -1, 30},
		{&SettleTerms{Unknown: 5}, -1, 15}, {&SettleTerms{Unknown: 0}, -1, 0}, {&SettleTerms{Unknown: -1}, -1, 30},
		{&SettleTerms{Unknown: -1, Estimate: 20, Learn: &Learn{}}, -1, 60},
		{&SettleTerms{Unknown: -1, Estimate: 9, Learn: &Learn{}}, -1, 30},
		{nil, 1 << 62, 1 << 53 / 3 * 3}, // the largest product of 3 up to 2^53
	} {
		if got := realCost(c.terms, part, c.real); got != c.want {
			t.Errorf("%+v, real cost %d: got %d, want %d", c.terms, c.real, got, c.want)
		}
	}
}

func TestHowLongSettlementsAreStored(t *testing.T) {
	const at, ttl = 1000 * algorithms.Second, 60 * algorithms.Second
	l := &Policy{Extras: &Extras{Settle: &SettleTerms{TTL: ttl}}}
	for _, c := range []struct {
		name  string // the name of the limit that an application reserved; "" means a reservation of a proxy
		after algorithms.Micros
		late  bool
		want  algorithms.Micros
	}{
		{"", 0, false, 2*ttl + ClockSlack},
		{"", ttl, false, ttl + ClockSlack},
		{"", ttl + 1, true, ttl + ClockSlack},
		{"", 9 * ttl, true, ttl + ClockSlack},
		{"jobs", 0, false, 5 + Within + ClockSlack},
		{"jobs", Within, false, 5 + ClockSlack},
	} {
		p := &ReservedPart{At: at, ByName: ByName{Name: c.name, Wait: 5}}
		if late, stored := p.terms(l, at+c.after); late != c.late || stored != c.want {
			t.Errorf("%q after %d us: late %t, stored for %d; want %t and %d", c.name, c.after, late, stored, c.late, c.want)
		}
	}
}

func TestOnlyARequestToADomainWithSettleStarts(t *testing.T) {
	settling := &Domain{Settle: &SettleEntries{}}
	one := []Descriptor{{}}
	for name, c := range map[string]struct {
		call Call
		want bool
	}{
		"an unknown domain":  {Call{Request: Request{Descriptors: one}}, false},
		"no settle":          {Call{Request: Request{Descriptors: one}, Verdict: Verdict{Domain: &Domain{}}}, false},
		"settle":             {Call{Request: Request{Descriptors: one}, Verdict: Verdict{Domain: settling}}, true},
		"a settle-done":      {Call{Request: Request{Descriptors: one}, Verdict: Verdict{Domain: settling}, done: 1}, false},
		"named limits":       {Call{Request: Request{Descriptors: one, Limits: []NamedCharge{{}}}, Verdict: Verdict{Domain: settling}}, false},
		"nothing to reserve": {Call{Verdict: Verdict{Domain: settling}}, false},
	} {
		if got := c.call.Started(); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

func TestOnlySettlementsAreDone(t *testing.T) {
	for _, c := range []struct {
		done, descriptors int
		want              bool
	}{{0, 0, false}, {0, 1, false}, {1, 1, true}, {1, 2, false}, {2, 2, true}} {
		call := Call{Request: Request{Descriptors: make([]Descriptor, c.descriptors)}, done: c.done}
		if got := call.IsDone(); got != c.want {
			t.Errorf("%d of %d descriptors settle: %t, want %t", c.done, c.descriptors, got, c.want)
		}
	}
}
