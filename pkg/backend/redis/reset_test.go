package redis

import (
	"errors"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func TestResetForgetsAllShards(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3).Steady()
	s, _ := patient(t, c.URL())
	bucket, other := sharded(t, windowSpec(100), 7, "one"), sharded(t, windowSpec(100), 7, "other")
	for _, b := range []backend.Charge{bucket, other} {
		if d := takeOne(t, s, b, algorithms.Ask{Cost: 100}); !d.Allowed {
			t.Fatalf("%+v", d)
		}
	}
	if err := backend.ResetBucket(t.Context(), s, bucket); err != nil {
		t.Fatal(err)
	}
	if n := sum(values(t, s, bucket)); n != 100 {
		t.Errorf("%d left after a reset, want 100", n)
	}
	if d := takeOne(t, s, bucket, algorithms.Ask{Cost: 1}); !d.Allowed || d.Remaining != 99 {
		t.Errorf("after a reset: %+v", d)
	}
	if n := sum(values(t, s, other)); n != 0 {
		t.Errorf("the bucket beside it has %d left, want 0", n)
	}
}

func TestResetSaysWhenRedisIsAway(t *testing.T) {
	t.Parallel()
	s, err := Open(Config{URL: "redis://127.0.0.1:1", Timeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := backend.ResetBucket(t.Context(), s, backend.Charge{Key: []byte("k")}); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
}
