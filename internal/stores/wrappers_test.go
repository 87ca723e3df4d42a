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

// The wrappers have the order of package server.
func TestWrappersAnswerTheExamplesLikeTheStoreAlone(t *testing.T) {
	storetest.Vectors(t, func(t *testing.T, now func() algorithms.Micros) backend.Store {
		t.Helper()
		next := backend.Store(memory.New(memory.Config{Clock: storetest.Times(now)}))
		next = dividedStore(t, &claims{Store: next}, next)
		next = stores.Cache(next, stores.CacheConfig{Clocks: func() (monotonic, wall time.Duration) {
			at := time.Duration(now()) * time.Microsecond
			return at, at
		}})
		return stores.Deadline(nil, next, time.Minute, ms, nil)
	})
}

func TestDeadlineChangesNoAnswer(t *testing.T) {
	storetest.Exact(t, func(_ *testing.T, now func() algorithms.Micros) backend.Store {
		return stores.Deadline(nil, memory.New(memory.Config{Clock: storetest.Times(now)}), time.Minute, ms, nil)
	})
}
