package stores_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

func TestResetForgetsDenials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stores.Denied(memory.New(memory.Config{Clock: storetest.Times(wall)}), stores.DeniedConfig{})
		a, b := of(tokens(t, 1, algorithms.Day, 1), "a", 1), of(tokens(t, 1, algorithms.Day, 1), "b", 1)
		take(t.Context(), s, a)
		take(t.Context(), s, b)
		for _, c := range []backend.Charge{a, b} {
			if take(t.Context(), s, c)[0].Allowed {
				t.Fatal("allowed, although the bucket is empty")
			}
		}
		if err := backend.ResetBucket(t.Context(), s, a); err != nil {
			t.Fatal(err)
		}
		if !take(t.Context(), s, a)[0].Allowed {
			t.Error("a is denied after its reset")
		}
		if take(t.Context(), s, b)[0].Allowed {
			t.Error("b was not reset")
		}
	})
}

func TestResetWithoutTimeFails(t *testing.T) {
	c := of(tokens(t, 1, algorithms.Second, 1), "a", 1)
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if err := backend.ResetBucket(late, stores.Deadline(memory.New(memory.Config{}), time.Second, 0, nil), c); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("no time left: %v; want the error backend.ErrUnavailable", err)
	}
}
