package stores_test

import (
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

func TestWrappersAnswerTheExamplesLikeTheStoreAlone(t *testing.T) {
	type wrapper = func(t *testing.T, next backend.Store, now func() time.Time) backend.Store
	wrappers := map[string]wrapper{
		"deadline": func(_ *testing.T, next backend.Store, _ func() time.Time) backend.Store {
			return stores.Deadline(next, time.Minute, ms, nil)
		},
		"cache": func(_ *testing.T, next backend.Store, now func() time.Time) backend.Store {
			return stores.Cache(next, stores.CacheConfig{Clocks: func() (monotonic, wall time.Duration) {
				at := time.Duration(now().UnixNano())
				return at, at
			}})
		},
		"divided": func(t *testing.T, next backend.Store, _ func() time.Time) backend.Store {
			t.Helper()
			return dividedStore(t, next, next)
		},
	}
	wrappers["all"] = func(t *testing.T, next backend.Store, now func() time.Time) backend.Store {
		t.Helper()
		for _, name := range []string{"divided", "cache", "deadline"} { // in the order of package server
			next = wrappers[name](t, next, now)
		}
		return next
	}
	for name, wrap := range wrappers {
		t.Run(name, func(t *testing.T) {
			storetest.Vectors(t, func(t *testing.T, now func() algorithms.Micros) backend.Store {
				t.Helper()
				return wrap(t, memory.New(memory.Config{Clock: storetest.Times(now)}), func() time.Time { return time.UnixMicro(int64(now())) })
			})
		})
	}
}

func TestDeadlineChangesNoAnswer(t *testing.T) {
	storetest.Exact(t, func(_ *testing.T, now func() algorithms.Micros) backend.Store {
		return stores.Deadline(memory.New(memory.Config{Clock: storetest.Times(now)}), time.Minute, ms, nil)
	})
}
