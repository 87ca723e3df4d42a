package redis

import (
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// An entry whose age equals the period no longer counts.
func TestLogEntriesCountForExactlyOnePeriod(t *testing.T) {
	t.Parallel()
	server, clock := redistest.Start(t), &storetest.Clock{}
	store := open(t, Config{URL: "redis://" + server.Addr, Clock: clock.Now, Timeout: 5 * time.Second})
	limit := compiled(t, algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 2, Period: algorithms.Second})
	for _, step := range []struct {
		at      algorithms.Micros
		allowed bool
	}{{0, true}, {100_000, true}, {200_000, false}, {999_999, false}, {1_000_000, true}, {1_050_000, false}, {1_100_000, true}} {
		clock.Set(storetest.Start + step.at)
		var d [1]backend.Decision
		backend.Take(t.Context(), store, []backend.Charge{{Key: []byte("k"), Limit: limit, Terms: algorithms.Charge{Cost: 1}}}, d[:])
		if d[0].Err != nil || d[0].Allowed != step.allowed {
			t.Errorf("after %d us: allowed %t, %v; want no error and allowed %v", step.at, d[0].Allowed, d[0].Err, step.allowed)
		}
	}
}
