package redis

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// Limits with small numbers count in microseconds, and those with large numbers in milliseconds. Many requests arrive
// within the same millisecond. Sometimes the clock steps back.
func TestTheScriptDecidesLikePackageAlgorithmsWhenTheTickChanges(t *testing.T) {
	t.Parallel()
	n := func(v int64) *int64 { return &v }
	const s, day = algorithms.Second, algorithms.Day
	token, leaky := algorithms.TokenBucket, algorithms.LeakyBucket
	sure := &algorithms.Rate{Units: 3, Period: s}
	penalty := &algorithms.Penalty{After: 3, For: 5000, Max: s}
	for _, c := range []struct {
		name  string
		specs []algorithms.Spec
	}{
		{"token bucket", []algorithms.Spec{
			{Kind: token, Rate: 50, Period: s, Capacity: n(3), MaxReserved: n(20)},
			{Kind: token, Rate: 9, Period: s, Capacity: n(20), Penalty: penalty},
			{Kind: token, Rate: 999_983, Period: day, MaxReserved: n(30)},
			{Kind: token, Rate: 999_979, Period: day, Capacity: n(900_000), Penalty: penalty},
		}},
		{"guaranteed", []algorithms.Spec{
			{Kind: token, Rate: 50, Period: s, Capacity: n(3), Minimum: sure, Penalty: penalty},
			{Kind: token, Rate: 9, Period: s, Capacity: n(20), Minimum: sure},
			{Kind: token, Rate: 999_983, Period: day, Minimum: sure},
			{Kind: token, Rate: 999_979, Period: day, Capacity: n(900_000), Minimum: &algorithms.Rate{Units: 5, Period: s}, Penalty: penalty},
		}},
		{"leaky bucket", []algorithms.Spec{
			{Kind: leaky, Rate: 50, Period: s, Capacity: n(3)},
			{Kind: leaky, Rate: 9, Period: s, Capacity: n(20), Penalty: penalty},
			{Kind: leaky, Rate: 999_983, Period: day, Capacity: n(999_983)},
			{Kind: leaky, Rate: 999_979, Period: day, Capacity: n(900_000)},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			now, clock := storetest.Start, &storetest.Clock{}
			ours := open(t, Config{URL: "redis://" + server.Addr, Clock: clock.Now, Timeout: 5 * time.Second})
			want := memory.New(memory.Config{Clock: clock.Time})
			rng := rand.New(rand.NewPCG(7, 2))
			var limits []*algorithms.Limit
			for _, spec := range c.specs {
				limits = append(limits, compiled(t, spec))
			}
			limit, retry, denied := limits[0], algorithms.Micros(0), 0
			for step := range 4000 {
				if rng.IntN(3) == 0 {
					limit = limits[rng.IntN(len(limits))]
				}
				switch rng.IntN(8) {
				case 0:
					now += algorithms.Micros(rng.Int64N(int64(s / 4)))
				case 1:
					now += max(0, retry-algorithms.Micros(rng.IntN(2)))
				case 2:
					if rng.IntN(10) == 0 {
						now -= algorithms.Micros(rng.Int64N(int64(s)))
					}
				default:
					now += algorithms.Micros(rng.Int64N(1500))
				}
				clock.Set(now)
				a := algorithms.Charge{Cost: rng.Int64N(8) - 1}
				switch rng.IntN(6) {
				case 0:
					a.Reserve = c.specs[0].MaxReserved != nil
				case 1:
					a.DryRun = true
				case 2:
					a.ChargedAt = now - algorithms.Micros(rng.Int64N(5000))
				case 3:
					if c.specs[0].Kind == leaky {
						a.MaxWait, a.Cost = algorithms.Micros(1+rng.Int64N(int64(s))), a.Cost*int64(rng.IntN(2))
					}
				}
				charges := []backend.Charge{{Key: []byte("a"), Limit: limit, Terms: a}}
				got, exact := make([]backend.Decision, 1), make([]backend.Decision, 1)
				backend.Take(t.Context(), ours, charges, got)
				backend.Take(t.Context(), want, charges, exact)
				if got[0] != exact[0] {
					t.Fatalf("step %d, %+v by %+v at %d:\n got %+v\nwant %+v", step, a, *limit, now, got[0], exact[0])
				}
				if retry = got[0].RetryAfter; !got[0].Allowed {
					denied++
				}
			}
			if denied < 200 || denied > 3800 {
				t.Errorf("%d of 4,000 were denied; want 200 to 3800", denied)
			}
		})
	}
}
