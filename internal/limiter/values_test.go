package limiter

import (
	"testing"
	"unsafe"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/internal/scaled"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func compiled(t *testing.T, s algorithms.Spec) *algorithms.Limit {
	t.Helper()
	l, err := algorithms.Compile(s)
	if err != nil {
		t.Fatal(err)
	}
	return &l
}

// A request that charges both of two buckets can be repeated at the later of their times. One that charges either of
// them can be repeated at the earlier one.
func TestRetryTimesOfSeveralBuckets(t *testing.T) {
	never := retry{never: true}
	for _, c := range []struct{ a, b, both, either retry }{
		{retry{after: 3}, retry{after: 5}, retry{after: 5}, retry{after: 3}},
		{retry{after: 5}, retry{after: 3}, retry{after: 5}, retry{after: 3}},
		{retry{}, retry{after: 3}, retry{after: 3}, retry{}},
		{never, retry{after: 3}, never, retry{after: 3}},
		{retry{after: 3}, never, never, retry{after: 3}},
		{never, never, never, never},
	} {
		if both, either := c.a.both(c.b), c.a.either(c.b); both != c.both || either != c.either {
			t.Errorf("%+v and %+v: both after %+v, either after %+v; want %+v and %+v", c.a, c.b, both, either, c.both, c.either)
		}
	}
}

// An undo has an earlier time than its charge if the rate was lowered in between. It has the same time as the charge if
// the time of the charge or the rate at that time is unknown, or if the limit does not refill now.
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

// The real cost is that of 3 equal charges. -1 means that it was not reported: then it is the configured unknown_cost,
// or what was reserved.
func TestRealCosts(t *testing.T) {
	part := &ReservedPart{Count: 30, Times: 3}
	for _, c := range []struct {
		terms      *descriptors.Settle
		real, want int64
	}{
		{nil, 7, 21}, {nil, 0, 0}, {nil, -1, 30},
		{&descriptors.Settle{Unknown: 5}, -1, 15}, {&descriptors.Settle{Unknown: 0}, -1, 0}, {&descriptors.Settle{Unknown: -1}, -1, 30},
		{nil, 1 << 62, 1 << 53 / 3 * 3}, // the largest product of 3 up to 2^53
	} {
		if got := realCost(c.terms, part, c.real); got != c.want {
			t.Errorf("%+v, real cost %d: got %d, want %d", c.terms, c.real, got, c.want)
		}
	}
}

// The store remembers a settlement by an application until the reservation has expired: at the time Within after it was
// due. It remembers one by a proxy until the reservation is twice its ttl old, but at least for one ttl. In both cases it
// adds ClockSlack, by which the clocks of sidecars may differ.
func TestHowLongSettlementsAreStored(t *testing.T) {
	const at, ttl = 1000 * algorithms.Second, 60 * algorithms.Second
	l := &descriptors.Policy{Extras: &descriptors.Extras{Settle: &descriptors.Settle{TTL: ttl}}}
	for _, c := range []struct {
		name  string // of the limit that an application reserved; "" means a reservation of a proxy
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

// The version that did not number the parts of reservations used part 0 in the IDs of settlements, and part 1 for limits
// that are not charged together with others.
func TestSettlementsOfIDsWithoutNumbers(t *testing.T) {
	id := [16]byte{1}
	c := &Call{Verdict: Verdict{Domain: &Domain{Name: "d"}}, config: &Config{}}
	check := func(name string, p *descriptors.Policy, part string) {
		t.Helper()
		got := c.settlementID(&id, &ReservedPart{Number: -1}, &Result{Policy: p})
		if want := IdempotencyID("d", "settle "+string(id[:]), part); got != want {
			t.Errorf("%s: got %x, want %x, the ID of part %s", name, got, want, part)
		}
	}
	check("charged with others", &descriptors.Policy{}, "0")
	c.config = &Config{Modes: Modes{Quota: true}}
	check("quota mode of the process", &descriptors.Policy{}, "1")
	c.config = &Config{}
	for name, p := range map[string]*descriptors.Policy{
		"shadow": {Shadow: true}, "quota": {Quota: true}, "unlimited": {Adjusted: &descriptors.Adjusted{Unlimited: true}},
	} {
		check(name, p, "1")
	}
}

func TestEstimatesOfDifferentLimitsAreSeparate(t *testing.T) {
	seen := map[uint64]string{}
	for _, prefix := range []string{"a", "b", "c", "d"} {
		for _, value := range []string{"", "large", "small"} {
			c := &Call{}
			c.AddDescriptor().Entries = []descriptors.Entry{{Key: "model", Value: value}}
			cell := c.cell(&descriptors.Policy{Prefix: prefix, Extras: &descriptors.Extras{Settle: &descriptors.Settle{Learn: &descriptors.Learn{
				Per: []string{"model"}, Values: map[string]map[string]bool{"model": {"large": true, "small": true}},
			}}}})
			if was, known := seen[cell]; known || cell == 0 {
				t.Errorf("%s with %q: got the cell %d, which is that of %q; want another one that is not 0", prefix, value, cell, was)
			}
			seen[cell] = prefix + value
		}
	}
}

// A domain keeps at most maxOverrides compiled overrides, so that clients cannot fill the memory.
func TestCompiledOverridesAreBounded(t *testing.T) {
	d := &Domain{Name: "d"}
	for rate := range uint32(maxOverrides + 10) {
		if d.override(Override{Rate: rate, Period: algorithms.Second}) == nil {
			t.Fatalf("rate %d does not compile", rate)
		}
	}
	kept := 0
	d.overrides.Range(func(any, any) bool { kept++; return true })
	if kept != maxOverrides || d.overrideCount.Load() != maxOverrides {
		t.Errorf("%d overrides are kept and %d are counted, want %d", kept, d.overrideCount.Load(), maxOverrides)
	}
}

// A listener drops a Call whose buffers have grown too large, so BufferBytes must count each of these buffers.
func TestEachBufferOfACallCounts(t *testing.T) {
	for name, c := range map[string]struct {
		call Call
		want uintptr
	}{
		"nothing":     {Call{}, 0},
		"keys":        {Call{keys: make([]byte, 0, 100)}, 100},
		"buckets":     {Call{buckets: make([]uint32, 0, 100)}, 400},
		"results":     {Call{Verdict: Verdict{Results: make([]Result, 0, 7)}}, 7 * unsafe.Sizeof(Result{})},
		"statuses":    {Call{Verdict: Verdict{Statuses: make([]Status, 0, 7)}}, 7 * unsafe.Sizeof(Status{})},
		"descriptors": {Call{Request: Request{Descriptors: make([]Descriptor, 0, 7)}}, 7 * unsafe.Sizeof(Descriptor{})},
		"candidates":  {Call{candidates: make([]candidate, 0, 7)}, 7 * unsafe.Sizeof(candidate{})},
		"settlements": {Call{Verdict: Verdict{Settlements: make([]Settlement, 0, 7)}}, 7 * unsafe.Sizeof(Settlement{})},
		"payers":      {Call{payers: make([]payer, 0, 7)}, 7 * unsafe.Sizeof(payer{})},
		"two buffers": {Call{keys: make([]byte, 0, 100), buckets: make([]uint32, 0, 100)}, 500},
	} {
		if got := c.call.BufferBytes(); got != int(c.want) {
			t.Errorf("%s: %d bytes, want %d", name, got, c.want)
		}
	}
}

func TestAResetCallHasNoRequest(t *testing.T) {
	c := &Call{Request: Request{
		Domain: "d", Settle: &Settle{}, IdempotencyKey: IdempotencyKey{ID: "x", Lifetime: 1}, DryRun: true, Inspect: true, MaxDelay: 5,
		Limits: []NamedCharge{{Name: "x"}},
	}}
	c.AddDescriptor()
	c.Reset()
	r := &c.Request
	if r.Domain != "" || r.Settle != nil || r.IdempotencyKey != (IdempotencyKey{}) || r.DryRun || r.Inspect || r.MaxDelay != 0 || len(r.Limits) != 0 || len(r.Descriptors) != 0 {
		t.Errorf("got %+v, want an empty request", *r)
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

func TestDomainsThatRequireEntries(t *testing.T) {
	s := &Snapshot{Domains: map[string]*Domain{"free": {}, "strict": {Require: []Requirement{{"user"}}}}}
	for domain, want := range map[string]bool{"unknown": false, "free": false, "strict": true} {
		if got := s.Requires(domain); got != want {
			t.Errorf("%s: %t, want %t", domain, got, want)
		}
	}
}

// A listed value has its own estimate only in entries with the key under which it is listed. All other values have one
// estimate together.
func TestAnEstimateIsOfTheKeyThatListsIt(t *testing.T) {
	p := &descriptors.Policy{Prefix: "p", Extras: &descriptors.Extras{Settle: &descriptors.Settle{Learn: &descriptors.Learn{
		Per: []string{"model"}, Values: map[string]map[string]bool{"model": {"large": true}},
	}}}}
	cell := func(key, value string) uint64 {
		c := &Call{}
		c.AddDescriptor().Entries = []descriptors.Entry{{Key: key, Value: value}}
		return c.cell(p)
	}
	listed, others := cell("model", "large"), cell("model", "unlisted")
	for _, key := range []string{"user", "other"} {
		if got := cell(key, "large"); got == listed || got != others {
			t.Errorf("the value of the key %s: got the cell %d; want %d, that of a value that is not listed", key, got, others)
		}
	}
	if listed == others {
		t.Errorf("a value that is not listed has the cell of the listed one, %d; want another one", listed)
	}
}

func TestWhichResultsDeny(t *testing.T) {
	plain, quota := &descriptors.Policy{}, &descriptors.Policy{Quota: true}
	for _, c := range []struct {
		denied, quotas bool
		p              *descriptors.Policy
		outcome        Outcome
		want           bool
	}{
		{true, false, plain, Denied, true}, {true, false, plain, FailedDenied, true}, {true, false, nil, Denied, true},
		{true, false, plain, Allowed, false}, {true, true, plain, Allowed, false}, {true, false, plain, Shadowed, false},
		{false, false, plain, Denied, false}, {true, false, quota, Denied, false}, {true, true, quota, Denied, true}, {true, true, quota, Allowed, false},
	} {
		v := &Verdict{Denied: c.denied, quotasDeny: c.quotas}
		if got := v.Denies(&Result{Policy: c.p, Outcome: c.outcome}); got != c.want {
			t.Errorf("%+v: got %t, want %t", c, got, c.want)
		}
	}
}

func TestTheStatusOfADescriptor(t *testing.T) {
	allowed := func(left int64) Result {
		return Result{Outcome: Allowed, Decision: backend.Decision{Decision: algorithms.Decision{Allowed: true, Remaining: left}}}
	}
	denied := func(after algorithms.Micros) Result {
		return Result{Outcome: Denied, Decision: backend.Decision{Decision: algorithms.Decision{RetryAfter: after}}}
	}
	never := Result{Outcome: Denied, Decision: backend.Decision{Decision: algorithms.Decision{Never: true}}}
	free, replaced := Result{Outcome: Unlimited}, Result{Outcome: Replaced}
	for name, c := range map[string]struct {
		results []Result
		want    int
		denied  bool
	}{
		"nothing":                     {nil, -1, false},
		"a replaced limit":            {[]Result{replaced}, -1, false},
		"unlimited":                   {[]Result{free, free}, 0, false},
		"a limit beside unlimited":    {[]Result{free, allowed(5), free}, 1, false},
		"the fewest units":            {[]Result{allowed(5), allowed(3), allowed(4)}, 1, false},
		"of equal limits, the first":  {[]Result{allowed(3), allowed(3)}, 0, false},
		"a denial":                    {[]Result{allowed(0), denied(1), allowed(0)}, 1, true},
		"the longest denial":          {[]Result{denied(1), denied(3), denied(2)}, 1, true},
		"of equal denials, the first": {[]Result{denied(1), denied(1)}, 0, true},
		"a denial for good":           {[]Result{denied(1), never, denied(3), never}, 1, true},
	} {
		v := &Call{Verdict: Verdict{Results: c.results, Statuses: []Status{{Result: -1}}}}
		for i := range c.results {
			v.updateStatus(i)
		}
		if got := v.Statuses[0]; got != (Status{Result: c.want, Denied: c.denied}) {
			t.Errorf("%s: got %+v, want result %d, denied %t", name, got, c.want, c.denied)
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
