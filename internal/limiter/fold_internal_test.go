package limiter

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

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
