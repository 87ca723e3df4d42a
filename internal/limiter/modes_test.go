package limiter_test

import (
	"errors"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

const modesYAML = `
domain: d
on_backend_failure: error
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: b, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: free, rate_limit: {unlimited: true}}
`

func TestShadowModeDeniesNothingAndReportsDenials(t *testing.T) {
	b := newBench(t, modesYAML, limiter.Modes{Shadow: true})
	if c := b.send(t, 1, "a=1"); c.Denied || c.WouldDeny {
		t.Errorf("within the limit: %+v; want allowed and not would deny", c.Verdict)
	}
	if c := b.send(t, 1, "a=1"); c.Denied || !c.WouldDeny || !c.Statuses[0].Denied {
		t.Errorf("over it: %+v; want allowed, would deny and denied", c.Verdict)
	}
	b.store.err = errors.New("unreachable")
	if c := b.send(t, 1, "a=1"); c.Denied || c.Err != nil || !c.Failed {
		t.Errorf("the store failed: %+v; want allowed, no error and failed", c.Verdict)
	}
}

func TestQuotaModeDeniesOnlyIfEveryDescriptorIsDenied(t *testing.T) {
	b := newBench(t, modesYAML, limiter.Modes{Quota: true})
	for _, c := range []struct {
		descriptors []string
		denied      bool
		overA       bool
	}{
		{[]string{"a=1", "b=1"}, false, false},
		{[]string{"a=1", "b=1"}, false, true}, // the limit of b allows, and is charged
		{[]string{"a=1", "free=1"}, true, true},
		{[]string{"a=1", "other=1"}, false, true}, // a descriptor without a limit allows
		{[]string{"a=1", "b=1"}, false, true},
		{[]string{"a=1", "b=1"}, true, true},
	} {
		got := b.send(t, 1, c.descriptors...)
		if got.Denied != c.denied || got.Statuses[0].Denied != c.overA {
			t.Errorf("%v: denied %t, a %t; want %+v", c.descriptors, got.Denied, got.Statuses[0].Denied, c)
		}
	}
}

// A request whose cost a named limit can never allow is a mistake, and charges nothing. But if that limit is in shadow
// mode, the other limits are charged.
func TestAShadowLimitDoesNotMakeARequestADryRun(t *testing.T) {
	b := newBench(t, `
domain: d
limits:
  small: {algorithm: token_bucket, rate: 1, period: 1h, shadow_mode: true}
  large: {algorithm: token_bucket, rate: 10, period: 1h}
`)
	if c := b.together(t, "bob", limiter.NamedCharge{Name: "small", Count: 5}, limiter.NamedCharge{Name: "large", Count: 3}); c.Denied {
		t.Errorf("got %+v; want allowed", c.Verdict)
	}
	b.remains(t, "bob", map[string]int64{"small": 1, "large": 7})
}
