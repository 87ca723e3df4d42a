package main

import (
	"math"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// bytesPerKey is a generous estimate of the memory of a bucket. docs/performance.md has the measurement: about
// 110 bytes with a key of 31 bytes. The estimate is twice as large because of garbage.
const bytesPerKey = 256

// fitMemory adapts the program to the memory limit of its container. A process that exceeds the limit is
// OOM-killed, and all its buckets are lost. fitMemory sets the memory limit of the garbage collector to nine
// tenths of that limit, unless GOMEMLIMIT is set. It returns the number of buckets that fit into half of the
// garbage collector's limit, at most memory.DefaultMaxKeys. Without a limit it returns memory.DefaultMaxKeys.
func fitMemory(log *zap.Logger) (maxKeys int) {
	limit, err := memlimit.Set()
	if err != nil {
		log.Debug("the memory limit of this process is not known", zap.Error(err)) // the system is not Linux, or has no cgroups
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
