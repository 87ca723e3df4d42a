package redis

import (
	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// resetShards resets all shards of a bucket at the same time. Until it has ended, other processes may find
// some shards reset and others not.
type resetShards struct {
	charge backend.Charge
	memory *shardMemory
	is     backend.Decision
}

func (m *resetShards) decision() backend.Decision { return m.is }

func (m *resetShards) step(answers []backend.Decision) (charges []backend.Charge, undo []*refund) {
	if answers == nil {
		for i := range m.charge.Shards {
			part := shardOf(&m.charge, i)
			part.Group = i
			charges = append(charges, part)
		}
		return charges, nil
	}
	m.memory.forget(m.charge.Key)
	for i := range answers {
		m.is.Err = stores.MoreSevere(m.is.Err, answers[i].Err)
	}
	m.is.Decision = algorithms.Decision{Allowed: m.is.Err == nil}
	return nil, nil
}
