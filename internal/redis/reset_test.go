package redis

import (
	"errors"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func TestResetForgetsAllShards(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3).Steady()
	s, _ := openWithFixedClock(t, c.URL())
	bucket, other := sharded(t, windowSpec(100), 7, "one"), sharded(t, windowSpec(100), 7, "other")
	for _, b := range []backend.Charge{bucket, other} {
		if d := takeOne(t, s, b, algorithms.Charge{Cost: 100}); !d.Allowed {
			t.Fatalf("got %+v; want allowed", d)
		}
	}
	if err := backend.ResetBucket(t.Context(), s, bucket); err != nil {
		t.Fatal(err)
	}
	if n := sum(values(t, s, bucket)); n != 100 {
		t.Errorf("%d left after a reset, want 100", n)
	}
	if d := takeOne(t, s, bucket, algorithms.Charge{Cost: 1}); !d.Allowed || d.Remaining != 99 {
		t.Errorf("after a reset: %+v; want allowed and 99 remaining", d)
	}
	if n := sum(values(t, s, other)); n != 0 {
		t.Errorf("the other bucket has %d left, want 0", n)
	}
}

func TestResetReportsThatRedisIsUnavailable(t *testing.T) {
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

func TestResetsAndChargesOfABatchKeepTheirOrder(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{"one server": "redis://" + redistest.Start(t).Addr, "a Cluster": redistest.StartCluster(t, 3).Steady().URL()} {
		s := open(t, Config{URL: url, Timeout: 5 * time.Second})
		var charges []backend.Charge
		for i, cost := range []int64{3, 0, 2, 2, 0, 0, 1} { // 0 means a reset
			charges = append(charges, backend.Charge{Key: []byte("k"), Limit: limitOf(3), Group: i, Terms: algorithms.Charge{Cost: cost}, Reset: cost == 0})
		}
		want := []int64{0, 0, 1, -1, 0, 0, 2} // the units left; -1 means denied
		for i, d := range takeAll(s, charges) {
			if d.Err != nil || d.Allowed != (want[i] >= 0) || d.Allowed && d.Remaining != want[i] {
				t.Errorf("%s, charge %d: got %+v; want %d remaining (-1: denied)", name, i, d, want[i])
			}
		}
	}
}
