package limiter_test

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestLimitsAreShownAsWindows(t *testing.T) {
	five, twenty := int64(5), int64(20)
	for _, test := range []struct {
		spec           algorithms.Spec
		units, seconds int64
	}{
		{algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Period: 60 * sec}, 10, 60},
		{algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Period: 365 * algorithms.Day}, 10, 31_536_000},
		{algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Period: 60 * sec, Capacity: &twenty}, 20, 120},
		{algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Period: 60 * sec, Capacity: &five}, 5, 60}, // each window starts with 5
		{algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: 60 * sec, Capacity: &five}, 5, 30},
		{algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: 60 * sec, Capacity: &twenty}, 20, 120},
		{algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 3, Period: sec, Capacity: &five}, 5, 0}, // not a whole number of seconds
		{algorithms.Spec{Kind: algorithms.SlidingWindow, Rate: 10, Period: 60 * sec}, 10, 60},
		{algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: 60 * sec, Minimum: &algorithms.Rate{Units: 1, Period: sec}}, 11, 0}, // two rates
		{algorithms.Spec{Kind: algorithms.TokenBucket, Period: 60 * sec, Capacity: &five}, 5, 60},                                            // a rate of 0
	} {
		l := limittest.Compile(t, test.spec)
		if units, seconds := limiter.Shown(l); units != test.units || seconds != test.seconds {
			t.Errorf("%+v: shown as %d in %d s, want %d in %d s", test.spec, units, seconds, test.units, test.seconds)
		}
	}
}
