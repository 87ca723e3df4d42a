package redis

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

// Tests that neither cause a fault nor change a setting of the server share these servers. The Stores of each test have
// a KeyPrefix of their own.
var (
	shared          redistest.Shared
	sharedServer    = sync.OnceValue(func() *redistest.Server { return redistest.Start(&shared) })
	sharedCluster   = sync.OnceValue(func() *redistest.Cluster { return redistest.StartCluster(&shared, 3).Steady() })
	sharedSentinels = sync.OnceValue(func() *redistest.Sentinels { return redistest.StartSentinels(&shared).Steady() })
	prefixes        atomic.Int64
)

// on returns a Config for a shared server, a Cluster or Sentinels.
func on(tb testing.TB, form string) Config {
	tb.Helper()
	tooltest.Path(tb, "redis-server") // skips the test if there is no server
	c := Config{Timeout: 5 * time.Second, KeyPrefix: fmt.Sprintf("%d:", prefixes.Add(1))}
	switch form {
	case "cluster":
		c.URL = sharedCluster().URL()
	case "sentinel":
		c.URL = sharedSentinels().URL()
	default:
		c.URL = "redis://" + sharedServer().Addr
	}
	return c
}
