package advise

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const (
	second = algorithms.Second
	minute = 60 * second
	start  = algorithms.Micros(1_767_225_600_000_000)
)

var perMinute = algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: minute}

func policyOf(t testing.TB, spec algorithms.Spec) *descriptors.Policy {
	t.Helper()
	l, err := algorithms.Compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	return &descriptors.Policy{Domain: "edge", Name: "per_client", Limit: &l, Open: []int{0}}
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

func adviceOn(t testing.TB, h *History, p *descriptors.Policy, share float64) *Advice {
	t.Helper()
	a, err := h.Advise(t.Context(), p, share)
	if err != nil {
		t.Fatal(err)
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
	if b.P50 != 11 || b.P90 != 19 || b.P95 != 20 || b.P99 != 20 || b.Most != 18_334 || b.By.Shown != "abuser" {
		t.Errorf("got the busiest minutes %+v; want 11, 19, 20, 20 and 18334 of the abuser", b)
	}
}

// 1 % of 30 clients is less than one client, so the suggestion does not deny the abuser.
func TestFewClientsNamesTheAbuser(t *testing.T) {
	h := NewMemory(0).New()
	for i := range 29 {
		addRequests(h, fmt.Sprint("client ", i), start, 5)
	}
	addRequests(h, "abuser", start, 500)
	a := adviceOn(t, h, policyOf(t, perMinute), 0.01)
	if a.Suggested.N != 500 || a.Suggested.Clients != 0 {
		t.Errorf("suggested %+v, want 500, which denies no client", a.Suggested)
	}
	if o := a.Outlier(); o == nil || o.Shown != "abuser" || o.Next != 5 {
		t.Errorf("got the outlier %+v, want the abuser, next 5", o)
	}
	if first := a.Candidates[0]; first.N != 5 || first.Clients != 1 || first.Requests != 495 {
		t.Errorf("the first candidate is %+v, want one that denies the abuser alone", first)
	}
}

var shapes = map[string]algorithms.Spec{
	"token bucket":             {Kind: algorithms.TokenBucket, Rate: 7, Period: 60_000},
	"fixed window":             {Kind: algorithms.FixedWindow, Rate: 7, Period: 60_000},
	"fixed window, clock":      {Kind: algorithms.FixedWindow, Rate: 7, Period: 60_000, Start: new(algorithms.Micros(17))},
	"fixed window, each":       {Kind: algorithms.FixedWindow, Rate: 7, Period: 60_000, TakesDenied: true},
	"sliding window":           {Kind: algorithms.SlidingWindow, Rate: 7, Period: 60_000},
	"sliding log":              {Kind: algorithms.SlidingLog, Rate: 7, Period: 60_000},
	"leaky bucket":             {Kind: algorithms.LeakyBucket, Rate: 7, Period: 60_000},
	"guaranteed minimum":       {Kind: algorithms.TokenBucket, Rate: 3, Period: 60_000, Minimum: &algorithms.Rate{Units: 2, Period: 9_000}},
	"token bucket, penalty":    {Kind: algorithms.TokenBucket, Rate: 7, Period: 60_000, Penalty: &algorithms.Penalty{After: 2, For: second, Max: second}},
	"token bucket, overdraw":   {Kind: algorithms.TokenBucket, Rate: 7, Period: 60_000, Overdraw: true},
	"token bucket, in seconds": {Kind: algorithms.TokenBucket, Rate: 7, Period: 3 * second},
}

func TestNeedIsTheLeastThatDeniesNothing(t *testing.T) {
	for name, spec := range shapes {
		t.Run(name, func(t *testing.T) {
			policy := policyOf(t, spec)
			rapid.Check(t, func(t *rapid.T) {
				h := NewMemory(0).New()
				c, _ := h.Client([]byte("k"))
				h.Describe(c, "k", rapid.Uint64().Draw(t, "hash"))
				now := start
				for range rapid.IntRange(1, 40).Draw(t, "requests") {
					now += algorithms.Micros(rapid.OneOf(rapid.Int64Range(0, 5_000), rapid.Int64Range(0, 200_000)).Draw(t, "pause"))
					h.Add(c, now, rapid.Int64Range(-2, 9).Draw(t, "cost"))
				}
				s := newShape(policy)
				n := s.need(c)
				if denied := denials(s.at(n), c); denied > 0 {
					t.Fatalf("the need is %d, but a limit with it denies %d requests, want 0", n, denied)
				}
				if n > 1 && denials(s.at(n-1), c) == 0 {
					t.Fatalf("the need is %d, but a limit with %d denies no request either", n, n-1)
				}
			})
		})
	}
}

// denials is the reference implementation of replay.
func denials(l *algorithms.Limit, c *Client) (denied int) {
	state := algorithms.State{}
	for r := c.cursor(); ; {
		at, cost, more := r.next()
		if !more {
			return denied
		}
		var d algorithms.Decision
		if state, d = l.Take(state, at, algorithms.Charge{Cost: cost, Hash: c.Hash}); !d.Allowed {
			denied++
		}
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

// An abuser does not displace the client of another limit.
func TestMemoryIsBounded(t *testing.T) {
	const clients, most = 20_000, 1 << 20
	memory := NewMemory(most)
	h, other := memory.New(), memory.New()
	addRequests(other, "the only one", start, 3)
	needs := make([]int, clients)
	for i := range needs {
		needs[i] = 1 + i*i/(clients*clients/100) // between 1 and 100; high numbers are rarer
		addRequests(h, fmt.Sprint("client ", i), start+algorithms.Micros(i)*second, needs[i])
	}
	for range 1000 {
		addRequests(h, "abuser", start+clients*second, 300)
	}
	if memory.used > most {
		t.Errorf("%d bytes are used, want at most %d", memory.used, most)
	}
	a := adviceOn(t, h, policyOf(t, perMinute), 0.05)
	if a.Every == 1 || a.Clients < 1000 || math.Abs(float64(a.About)/clients-1) > 0.1 {
		t.Errorf("%d clients are kept, 1 of %d, about %d in total; want a sample of at least 1000, and about %d in total", a.Clients, a.Every, a.About, clients)
	}
	denied := 0
	for _, n := range needs {
		if int64(n) > a.Suggested.N {
			denied++
		}
	}
	if share := float64(denied) / clients; share > 0.05 || share < 0.05-2*a.Error-0.01 || a.Error == 0 {
		t.Errorf("%d denies requests of %.4f of all clients; want at most 0.05, and not much less; the error is %.4f", a.Suggested.N, share, a.Error)
	}
	if len(other.clients) != 1 {
		t.Error("the history of the other limit lost its client")
	}
}

// The requests beyond the abuser's part of the memory are only counted.
func TestAbuserIsCutOff(t *testing.T) {
	memory := NewMemory(1 << 16)
	h := memory.New()
	addRequests(h, "a", start, 1)
	addRequests(h, "abuser", start, 100_000)
	a := adviceOn(t, h, policyOf(t, perMinute), 0.5)
	if memory.used > 1<<16 || a.Clients != 2 || a.Missed == 0 || a.Requests != 100_001 {
		t.Errorf("%d bytes, %d clients, %d of %d requests left out; want at most %d bytes, 2 clients, some left out of 100001", memory.used, a.Clients, a.Missed, a.Requests, 1<<16)
	}
	if a.Suggested.N != 1 || a.Suggested.Clients != 1 {
		t.Errorf("suggested %+v; want 1, which denies one client", a.Suggested)
	}
}
