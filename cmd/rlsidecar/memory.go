package main

import (
	"math"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// bytesPerKey is what a bucket takes at most, its share of garbage included: docs/performance.md.
const bytesPerKey = 256

// fitMemory keeps the program within the memory that its container may use: over that it would be
// killed, and the buckets with it, which opens every gate that was closed. The collector is told of
// nine tenths (GOMEMLIMIT, where it is set, counts instead). It returns the most buckets that may be
// kept: half of that holds them, and no more than memory.DefaultMaxKeys.
func fitMemory(log *zap.Logger) (maxKeys int) {
	limit, err := memlimit.Set()
	if err != nil {
		log.Debug("the memory limit of this process cannot be told", zap.Error(err)) // not on Linux, or no cgroups
	}
	if limit == math.MaxInt64 {
		return memory.DefaultMaxKeys
	}
	maxKeys = keysWithin(limit)
	log.Info("memory is limited", zap.Int64("bytes", limit), zap.Int("max_keys", maxKeys))
	return maxKeys
}

func keysWithin(bytes int64) int {
	return int(min(memory.DefaultMaxKeys, max(1, bytes/2/bytesPerKey)))
}
