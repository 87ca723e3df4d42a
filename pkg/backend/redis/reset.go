package redis

import (
	"context"

	"github.com/cespare/xxhash/v2"
	goredis "github.com/redis/go-redis/v9"

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
		s.cluster.shards.forget(charge.Key)
	}
	if err != nil {
		return unavailable(err)
	}
	return nil
}

// namesOf lists the keys that c's bucket has in Redis.
func (s *Store) namesOf(c *backend.Charge) []string {
	k := keys{prefix: s.config.KeyPrefix}
	if s.cluster == nil || len(c.Shards) == 0 {
		name, _ := k.of(c)
		return []string{name}
	}
	names := make([]string, len(c.Shards))
	for i := range names {
		_, names[i] = s.cluster.shard(c, i)
	}
	return names
}

// forget forgets what was seen of a bucket's shards.
func (m *shardMemory) forget(key []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.seen, xxhash.Sum64(key))
}
