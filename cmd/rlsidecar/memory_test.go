package main

import (
	"math"
	"runtime/debug"
	"testing"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

func TestLessMemoryAllowsFewerBuckets(t *testing.T) {
	for bytes, want := range map[int64]int{
		math.MaxInt64: memory.DefaultMaxKeys, 1 << 30: memory.DefaultMaxKeys, 64 << 20: 131072, 100: 1, 0: 1,
	} {
		if got := keysWithin(bytes); got != want {
			t.Errorf("%d bytes: %d, want %d", bytes, got, want)
		}
	}
}

func TestGOMEMLIMITBoundsTheBuckets(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "64MiB")
	// The runtime has read the variable at the start of the process. SetMemoryLimit has the same effect.
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(64 << 20))
	if got := fitMemory(zap.NewNop()); got != 131072 {
		t.Errorf("got %d buckets, want 131072", got)
	}
}
