package advise

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/calendar"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const (
	second = algorithms.Second
	minute = 60 * second
	start  = algorithms.Micros(1_767_225_600_000_000)
)

var perMinute = algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: minute}

func policyOf(tb testing.TB, spec algorithms.Spec) *limiter.Policy {
	tb.Helper()
	l := limittest.Compile(tb, spec)
	return &limiter.Policy{Domain: "edge", Name: "per_client", Limit: l, Keys: descriptors.Keys{Open: []int{0}}}
}

func addRequests(h *History, client string, at algorithms.Micros, n int) {
	c, added := h.Client([]byte(client))
	if c == nil {
		return
	}
	if added {
		h.Describe(c, client, 0)
	}
	for range n {
		h.Add(c, at, 1)
	}
}

func adviceOn(tb testing.TB, h *History, p *limiter.Policy, share float64) *Advice {
	tb.Helper()
	a, err := h.Advise(tb.Context(), p, share)
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

func TestOneAbuserDoesNotMoveTheSuggestion(t *testing.T) {
	h := NewMemory(0).New()
	for i := range 200 {
		addRequests(h, fmt.Sprint("client ", i), start+algorithms.Micros(i)*second, 1+i%20)
	}
	few := adviceOn(t, h, policyOf(t, perMinute), 0.01)
	addRequests(h, "abuser", start+300*second, 18_334)
	many := adviceOn(t, h, policyOf(t, perMinute), 0.01)

	if few.Suggested.N != 20 || many.Suggested.N != 20 {
		t.Errorf("suggested %d without the abuser and %d with it, want 20", few.Suggested.N, many.Suggested.N)
	}
	if got, want := many.Suggested.Outcome, (Outcome{Clients: 1, Requests: 18_314}); got != want {
		t.Errorf("the suggestion denies %+v, want %+v", got, want)
	}
	if o := many.Outlier(); o == nil || o.Shown != "abuser" || o.Need != 18_334 || o.Next != 20 {
		t.Errorf("got the outlier %+v; want the abuser with 18334, next 20", o)
	}
	if o := few.Outlier(); o != nil {
		t.Errorf("got the outlier %+v without the abuser, want none", o)
	}
	b := many.Busiest
	if b.P50 != 11 || b.P90 != 19 || b.P95 != 20 || b.P99 != 20 || b.Most != 18_334 || b.By != "abuser" {
		t.Errorf("got the busiest minutes %+v; want 11, 19, 20, 20 and 18334 of the abuser", b)
	}
}

// 1 % of 30 clients is less than one client, so the suggestion does not deny the abuser.
// 4 is the smallest number that denies requests of at most a tenth of the clients. 6 denies the abuser alone.
func TestTheSuggestionHasTheWidestGap(t *testing.T) {
	h := NewMemory(0).New()
	for i := range 60 {
		addRequests(h, fmt.Sprint("client ", i), start, 1+i%4)
	}
	for i := range 3 {
		addRequests(h, fmt.Sprint("busy ", i), start, 6)
	}
	addRequests(h, "abuser", start, 100)
	a := adviceOn(t, h, policyOf(t, perMinute), 0.1)
	if a.Suggested.N != 6 || a.Suggested.Clients != 1 || a.Smallest.N != 4 || a.Smallest.Clients != 4 {
		t.Errorf("got %+v and as the smallest %+v; want 6, which denies one client, and 4, which denies four", a.Suggested, a.Smallest)
	}
}

// A sliding log holds at most 10,000 units.
func TestNoNumberIsEnough(t *testing.T) {
	h := NewMemory(0).New()
	addRequests(h, "a", start, 10_001)
	a := adviceOn(t, h, policyOf(t, algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 1, Period: minute}), 0.01)
	if a.Suggested != nil || len(a.Candidates) != 0 || a.Configured.Requests != 10_000 {
		t.Errorf("suggested %+v of %+v, configured %+v; want no suggestion and 10000 denied requests", a.Suggested, a.Candidates, a.Configured)
	}
}

// A token bucket of 10,000,001 units in 30 days is out of the range of exact numbers. One of 10,000,002 is not, because
// its rate and its period have a common divisor.
func TestNumbersOutOfRangeAreLeftOut(t *testing.T) {
	h := NewMemory(0).New()
	c, _ := h.Client([]byte("a"))
	h.Describe(c, "a", 0)
	h.Add(c, start, 10_000_001)
	a := adviceOn(t, h, policyOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1000, Period: 30 * algorithms.Day}), 0.01)
	if a.Suggested == nil || a.Suggested.N != 10_000_002 || a.Suggested.Clients != 0 {
		t.Errorf("suggested %+v; want 10000002", a.Suggested)
	}
	if g, err := a.Grid(t.Context()); err != nil || len(g.Points) == 0 {
		t.Errorf("got %+v, %v; want points", g, err)
	}
}

func TestBusiestPeriodIsAWindowOfTheLimit(t *testing.T) {
	day := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	micros := func(d time.Duration) algorithms.Micros { return algorithms.Micros(day.Add(d).UnixMicro()) }
	clock := algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: minute, Start: new(algorithms.Micros)}
	long := algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1_000_000_000, Period: 5 * algorithms.Day}
	for name, test := range map[string]struct {
		spec     algorithms.Spec
		hash     uint64
		requests map[time.Duration]int64
		most     int64
		at       algorithms.Micros
	}{
		"the clock":         {clock, 7, map[time.Duration]int64{59 * time.Second: 1, time.Minute: 2, 119 * time.Second: 2, 2 * time.Minute: 1}, 4, micros(time.Minute)},
		"the first of two":  {clock, 7, map[time.Duration]int64{0: 2, time.Minute: 2}, 2, micros(0)},
		"a start":           {algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: minute, Start: new(17 * second)}, 7, map[time.Duration]int64{16 * time.Second: 1, 17 * time.Second: 1, 76 * time.Second: 1}, 2, micros(17 * time.Second)},
		"the key's phase":   {algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: minute}, uint64(40 * second), map[time.Duration]int64{39 * time.Second: 1, 40 * time.Second: 1, 99 * time.Second: 2, 100 * time.Second: 1}, 3, micros(40 * time.Second)},
		"the calendar":      {algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Calendar: calendar.Day.In(time.FixedZone("", 3600))}, 7, map[time.Duration]int64{22 * time.Hour: 1, 23 * time.Hour: 1, 46 * time.Hour: 1, 47 * time.Hour: 1}, 2, micros(23 * time.Hour)},
		"units refunded":    {clock, 7, map[time.Duration]int64{0: -9, time.Second: 3, 2 * time.Second: -1, 3 * time.Second: 2}, 4, micros(0)},
		"nothing requested": {clock, 7, map[time.Duration]int64{0: -9, time.Second: 0}, 0, 0},
		"huge costs":        {clock, 7, map[time.Duration]int64{0: math.MaxInt64, time.Second: math.MaxInt64}, math.MaxInt64 / 4, micros(0)},
		"coarse ticks":      {long, 0, map[time.Duration]int64{time.Second: 5}, 5, micros(0) / (5 * algorithms.Day) * (5 * algorithms.Day)},
	} {
		p := policyOf(t, test.spec)
		h := NewMemory(0).New()
		c, _ := h.Client([]byte("k"))
		h.Describe(c, "k", test.hash)
		var times []time.Duration
		for at := range test.requests {
			times = append(times, at)
		}
		slices.Sort(times)
		for _, at := range times {
			h.Add(c, micros(at), test.requests[at])
		}
		if most, at := busiest(p.Limit, c); most != test.most || at != test.at {
			t.Errorf("%s: got %d from %d, want %d from %d", name, most, at, test.most, test.at)
		}
	}
}

// Windows before the epoch have negative numbers.
func TestDivisionRoundsDown(t *testing.T) {
	for a, want := range map[int64]int64{-7: -3, -6: -2, -4: -2, -3: -1, -1: -1, 0: 0, 1: 0, 2: 0, 3: 1, 5: 1, 6: 2} {
		if got := floorDiv(a, 3); got != want {
			t.Errorf("%d / 3: got %d, want %d", a, got, want)
		}
	}
}

// Clients with equal needs are in descending order of their keys, so that a second run gives the same text.
func TestAdviceSumsUpTheClients(t *testing.T) {
	h := NewMemory(0).New()
	requestsAt(h, "c", 10, 10, 10).Denied = true
	requestsAt(h, "b", 5, 5, 5)
	requestsAt(h, "a", 90)
	requestsAt(h, "d", 20, 20, 20)
	a := adviceOn(t, h, policyOf(t, perMinute), 0.5)
	if a.first != start+5*second || a.last != start+90*second {
		t.Errorf("from %d to %d after the start; want 5 s to 90 s", a.first-start, a.last-start)
	}
	if a.Requests != 10 || a.Missed != 0 || a.Denied != 1 || a.Clients != 4 || a.About != 4 {
		t.Errorf("%d requests, %d missed, of %d clients, about %d, %d denied; want 10, 0, 4, 4, 1", a.Requests, a.Missed, a.Clients, a.About, a.Denied)
	}
	if b := a.Busiest; b.By != "b" || b.Most != 3 || b.P50 != 3 || b.P99 != 3 {
		t.Errorf("the busiest minutes are %+v of %s; want 3 of b, the first client with 3", b, b.By)
	}
	var needs, candidates []string
	for _, n := range a.LargestNeeds {
		needs = append(needs, fmt.Sprint(n.Shown, " ", n.Need))
	}
	for _, c := range a.Candidates {
		candidates = append(candidates, fmt.Sprint(c.N, " denies ", c.Clients, ", ", c.Requests))
	}
	if got, want := strings.Join(needs, "; "), "d 3; c 3; b 3; a 1"; got != want {
		t.Errorf("the largest needs are %q, want %q", got, want)
	}
	if got, want := strings.Join(candidates, "; "), "3 denies 0, 0"; got != want || a.Suggested == nil || a.Suggested.N != 3 {
		t.Errorf("the candidates are %q, the suggestion %+v; want %q, and the same suggestion", got, a.Suggested, want)
	}
}

func TestACandidateForAllClientsButOne(t *testing.T) {
	h := NewMemory(0).New()
	addRequests(h, "abuser", start, 10_001)
	addRequests(h, "large", start, 9_000)
	a := adviceOn(t, h, policyOf(t, algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 1, Period: minute}), 0.01)
	if a.Suggested != nil || len(a.Candidates) != 1 || a.Candidates[0] != (Candidate{9_000, Outcome{1, 1_001}}) {
		t.Errorf("suggested %+v of %+v; want no suggestion, and 9000, which denies 1001 requests of one client", a.Suggested, a.Candidates)
	}
	if o := a.Outlier(); o == nil || o.Shown != "abuser" || o.Need != 0 || o.Next != 9_000 {
		t.Errorf("got the outlier %+v; want the abuser, for which no number is enough", o)
	}
	grid, err := a.Grid(t.Context())
	if err != nil || grid.Points[len(grid.Points)-1].N != 9_000 {
		t.Errorf("got %+v, %v; want numbers up to 9000", grid, err)
	}
}

// For a sample of the clients, Error is twice the standard error of a share in a random sample of this size, so the true
// share is within it with a probability of about 95 %. A suggestion may deny the requested share of clients less Error.
func TestTheErrorOfASample(t *testing.T) {
	a := &Advice{Clients: 400, Every: 2, Share: 0.1}
	if room := a.room(0.1); room != 28 || math.Abs(a.Error-0.03) > 1e-9 {
		t.Errorf("room for %d clients, error %g; want 28, 0.03: 10 %% of 400 less 2*sqrt(0.1*0.9/400)", room, a.Error)
	}
	if room := a.room(0.5); room != 180 || math.Abs(a.Error-0.03) > 1e-9 {
		t.Errorf("another share has room for %d clients, and changes the error to %g; want 180, 0.03", room, a.Error)
	}
	if room := a.room(0.001); room != 0 {
		t.Errorf("a tiny share has room for %d clients, want 0", room)
	}
	whole := &Advice{Clients: 300, Every: 1, Share: 0.01}
	if room := whole.room(0.01); room != 3 || whole.Error != 0 {
		t.Errorf("1 %% of all 300 clients: room for %d, error %g; want 3, 0", room, whole.Error)
	}
}

func TestAStoppedRunHasNoAdvice(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	h := NewMemory(0).New()
	if a, err := h.Advise(ctx, policyOf(t, perMinute), 0.01); a != nil || err == nil {
		t.Errorf("without clients: got %+v, %v; want an error", a, err)
	}
	addRequests(h, "a", start, 9)
	if a, err := h.Advise(ctx, policyOf(t, perMinute), 0.01); a != nil || err == nil {
		t.Errorf("with a client: got %+v, %v; want an error", a, err)
	}
	a := adviceOn(t, h, policyOf(t, perMinute), 0.01)
	if g, err := a.Grid(ctx); g != nil || err == nil {
		t.Errorf("got the grid %+v, %v; want an error", g, err)
	}
}

// The suggestion is for 1 % of the clients. The other candidates are the smallest numbers that deny requests of at most
// 10 %, 5 % and 0.1 % of the clients, of one client, and of none.
func TestCandidatesForOtherShares(t *testing.T) {
	h := NewMemory(0).New()
	for i := range 200 {
		addRequests(h, fmt.Sprint("client ", i), start, i+1)
	}
	var got []string
	for _, c := range adviceOn(t, h, policyOf(t, perMinute), 0.01).Candidates {
		got = append(got, fmt.Sprint(c.N, " denies ", c.Clients))
	}
	if text, want := strings.Join(got, ", "), "180 denies 20, 190 denies 10, 198 denies 2, 199 denies 1, 200 denies 0"; text != want {
		t.Errorf("got %s, want %s", text, want)
	}
}

// A client that needs more than another may have fewer units in its busiest period.
func TestPercentilesOfTheBusiestPeriods(t *testing.T) {
	h := NewMemory(0).New()
	requestsAt(h, "across two minutes", 59, 59, 60, 60)
	requestsAt(h, "in one minute", 10, 10, 10)
	a := adviceOn(t, h, policyOf(t, perMinute), 0.01)
	if b := a.Busiest; b.P50 != 2 || b.P90 != 3 || b.Most != 3 || b.By != "in one minute" || a.LargestNeeds[0].Shown != "across two minutes" {
		t.Errorf("got %+v of %s, the largest need is that of %s; want 2, 3 and 3, and a larger need of the other client", b, b.By, a.LargestNeeds[0].Shown)
	}
}
