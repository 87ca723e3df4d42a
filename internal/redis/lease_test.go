package redis

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

func leasing(t *testing.T, c Config) *stores.CacheStore {
	t.Helper()
	s := stores.Cache(open(t, c), stores.CacheConfig{})
	t.Cleanup(s.Close)
	return s
}

func TestLeasesAreBounded(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"server", "sentinel", "cluster"} {
		t.Run(form, func(t *testing.T) {
			storetest.Bounded(t, 20, func(t *testing.T, now func() algorithms.Micros) backend.Store {
				t.Helper()
				c := on(t, form)
				c.Clock = now
				return leasing(t, c)
			})
		})
	}
}
