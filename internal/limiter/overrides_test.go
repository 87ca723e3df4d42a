package limiter_test

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// A bound (max_override) at a descriptor takes precedence. With share_threshold, overrides for different values share one
// bucket of it.
func TestBoundsOfOverrides(t *testing.T) {
	b := newBench(t, `
domain: d
max_override: {unit: day, requests_per_unit: 1}
descriptors:
  - {key: path, value: 'a*', share_threshold: true, max_override: {unit: day, requests_per_unit: 3}, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: own, max_override: {unit: day, requests_per_unit: 2}, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: other, rate_limit: {unit: day, requests_per_unit: 1}}
`)
	for _, test := range []struct {
		texts []string
		want  int // how many are allowed
	}{
		{[]string{"path=a1", "path=a2", "path=a1", "path=a2", "path=a3"}, 3}, {[]string{"own=a", "own=a", "own=a", "own=b", "own=b"}, 4}, {[]string{"other=a", "other=a"}, 1},
	} {
		allowed := 0
		for _, text := range test.texts {
			if !b.override(t, text, limiter.Override{Rate: 100, Period: algorithms.Day}).Denied {
				allowed++
			}
		}
		if allowed != test.want {
			t.Errorf("%v: %d allowed, want %d", test.texts, allowed, test.want)
		}
	}
}

// If an adjustment makes the only limit unlimited for a key, an override for that key decides alone.
func TestAnOverrideOfAnUnlimitedKeyHasOneResult(t *testing.T) {
	b := newBench(t, adjustable)
	b.adjust("window", map[string]adjust.Change{"free": {Unlimited: true}, "less": {Rate: number(2)}})
	for user, want := range map[string]int{"free": 1, "less": 2} {
		if c := b.override(t, "window="+user, limiter.Override{Rate: 7, Period: minute}); len(c.Results) != want {
			t.Errorf("%s: %d results; want %d", user, len(c.Results), want)
		}
	}
}
