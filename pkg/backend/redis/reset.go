package redis

import (
	"context"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Reset implements backend.Resetter. In a Cluster the shards of a bucket are forgotten one by one:
// who asks meanwhile may find some of them forgotten.
func (s *Store) Reset(ctx context.Context, charge backend.Charge) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	names := s.namesOf(&charge)
	_, err := s.client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
		for _, name := range names { // one DEL each: in a Cluster they are of different slots
			pipe.Del(ctx, name)
		}
		return nil
	})
	if s.cluster != nil {
		s.cluster.shards.memory.forget(charge.Key)
	}
	if err != nil {
		return unavailable(err)
	}
	return nil
}

// namesOf lists the keys that c's bucket has in Redis.
func (s *Store) namesOf(c *backend.Charge) []string {
	if s.cluster == nil || len(c.Shards) == 0 {
		name, _ := s.keys.of(c)
		return []string{name}
	}
	names := make([]string, len(c.Shards))
	for i := range names {
		part := shardOf(c, i)
		names[i], _ = s.keys.of(&part)
	}
	return names
}

// resetShards resets the shards of a bucket at the same time: others may find some of them reset and some not.
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
		m.is.Err = backend.Graver(m.is.Err, answers[i].Err)
	}
	m.is.Decision = algorithms.Decision{Allowed: m.is.Err == nil}
	return nil, nil
}
