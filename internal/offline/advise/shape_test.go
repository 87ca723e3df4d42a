package advise

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestTheConfiguredNumberGivesTheConfiguredLimit(t *testing.T) {
	for name, spec := range shapes {
		p := policyOf(t, spec)
		n := p.Limit.Rate
		switch p.Limit.Kind {
		case algorithms.Guaranteed:
			n = *p.Limit.Spec().Capacity
		case algorithms.LeakyBucket:
			continue // the number of a candidate is its rate and its capacity
		}
		if got := newShape(p).at(n); got == nil || *got != *p.Limit {
			t.Errorf("%s: the candidate with %d is %+v; want %+v", name, n, got, *p.Limit)
		}
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

func TestCandidatesKeepThePenalty(t *testing.T) {
	spec := algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: minute, Start: new(algorithms.Micros), Penalty: &algorithms.Penalty{After: 1, For: 600 * second, Max: 600 * second}}
	h := NewMemory(0).New()
	requestsAt(h, "a", 0, 0, 0, 0, 60, 120, 180)
	requestsAt(h, "b", 0, 0)
	a := adviceOn(t, h, policyOf(t, spec), 0.5)
	if want := (Candidate{2, Outcome{1, 5}}); a.Suggested == nil || *a.Suggested != want {
		t.Errorf("suggested %+v; want %+v: two denied requests, and three while the client is blocked", a.Suggested, want)
	}
}
