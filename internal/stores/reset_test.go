package stores_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

func TestResetWithoutTimeFails(t *testing.T) {
	c := of(tokens(t, 1, algorithms.Second, 1), "a", 1)
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if err := backend.ResetBucket(late, stores.Deadline(memory.New(memory.Config{}), time.Second, 0, nil), c); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("no time left: %v; want the error backend.ErrUnavailable", err)
	}
}
