package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/rlsidecar/rlsidecar/bench/bare"
	"github.com/rlsidecar/rlsidecar/bench/load"
)

// redisTimeout is how long a sidecar waits for Redis in these measurements. A busy machine sometimes stops a
// process for half a second. With the default of 10 ms, such late answers would become cheap denials.
const redisTimeout = "5s"

// loadConfig returns the closed loop of most rows: 4 connections with 16 outstanding requests each.
func (b *bench) loadConfig(key string, keys int) load.Config {
	return load.Config{
		Connections: 4, Outstanding: 16, Duration: b.Duration,
		Descriptors: []string{key + "={}"}, Keys: keys,
	}
}

// variant is an rlsidecar program to measure.
type variant struct {
	label, program string
}

// variants returns the program, and with --before the one from before a change.
func (b *bench) variants() []variant {
	all := []variant{{"now", b.Sidecar}}
	if b.Before != "" {
		all = append(all, variant{"before", b.Before})
	}
	return all
}

// redisFlags returns flags that give v its own prefix of keys in Redis, and redisTimeout.
func (v variant) redisFlags() []string {
	return []string{"--backend-timeout", redisTimeout, "--redis-key-prefix", v.label + ":"}
}

func (b *bench) sidecarOf(v variant) *sidecar {
	s := b.sidecar
	s.Sidecar = v.program
	return &s
}

// server returns a candidate that sends the requests of c to s. servers are the Redis servers that s uses.
func (b *bench) server(s *child, servers []*child, c load.Config, denied bool) candidate {
	return candidate{s.name, func() (out sample) {
		took := metered(b, servers, func() { out.Result = must(measureRequests(b.app, s, c, denied)) })
		out.redisCPU = took.cpu.Seconds() * 1e6 / float64(out.Answers())
		out.redisCalls = float64(took.calls) / out.Seconds
		return out
	}}
}

// buckets describes where a sidecar keeps its buckets: the sidecar's flags and the Redis servers. The zero
// value means memory.
type buckets struct {
	flags   []string
	servers []*child
}

func on(redis *child) buckets {
	return buckets{[]string{"--redis-url", "redis://" + redis.address}, []*child{redis}}
}

// filled starts a sidecar, and sends it a request for each key of c. It returns the sidecar as a candidate.
func (b *bench) filled(v variant, kept buckets, c load.Config, denied bool) candidate {
	args := slices.Clone(kept.flags)
	if len(kept.servers) > 0 {
		args = append(args, v.redisFlags()...)
	}
	s := b.started(b.sidecarOf(v).start(b, b.dir, c, args...))
	first := c
	first.Rate, first.InTurn, first.Requests = 0, true, int64(c.Keys)
	_ = must(measureRequests(b.app, s, first, denied))
	return b.server(s, kept.servers, c, denied)
}

// findAll creates rows of the table from the rounds of the ceiling and of a sidecar.
type findAll func(variant string, ceiling, ours rounds) []finding

// against measures the ceiling and each variant of the sidecar. The function sidecar starts a variant.
func (b *bench) against(ceiling candidate, sidecar func(v variant) candidate, find findAll) (found []finding) {
	all := []candidate{ceiling}
	variants := b.variants()
	for _, v := range variants {
		c := sidecar(v)
		all = append(all, c)
	}
	measured := b.inTurn(all...)
	for i, v := range variants {
		found = append(found, find(v.label, measured[0], measured[1+i])...)
	}
	return found
}

// besideMemory compares each variant of the sidecar on redis with the same variant in memory.
func (b *bench) besideMemory(redis *child, c load.Config, denied bool, find findAll) (found []finding) {
	for _, v := range b.variants() {
		inMemory := b.filled(v, buckets{}, c, denied)
		onRedis := b.filled(v, on(redis), c, denied)
		measured := b.inTurn(inMemory, onRedis)
		found = append(found, find(v.label, measured[0], measured[1])...)
	}
	return found
}

// empty starts the ceiling, an empty RateLimitService on HTTP/2 frames. The result sends it the requests of
// c.
func (b *bench) empty(c load.Config) candidate {
	s := b.started(startCeiling(b))
	return b.server(s, nil, c, false)
}

func memoryComparison(b *bench) []finding { return inMemoryComparison(b, 10_000, 1.3) }

func manyComparison(b *bench) []finding { return inMemoryComparison(b, b.keysMany(), 2) }

func inMemoryComparison(b *bench, keys int, target float64) []finding {
	c := b.loadConfig("user_id", keys)
	ceiling := b.empty(c)
	return b.against(ceiling, func(v variant) candidate { return b.filled(v, buckets{}, c, false) },
		func(variant string, ceiling, ours rounds) []finding {
			return []finding{{
				name: fmt.Sprintf("in memory, %s keys: CPU us a request", thousands(keys)), variant: variant,
				ceiling: ceiling.of(sampleCPU), ours: ours.of(sampleCPU), format: "%.2f", target: target,
			}}
		})
}

func thousands(n int) string {
	if n%1_000_000 == 0 {
		return fmt.Sprintf("%dM", n/1_000_000)
	}
	return fmt.Sprintf("%dk", n/1000)
}

func redisComparison(b *bench) []finding {
	redis := b.redis()
	c := b.loadConfig("user_id", 10_000)
	ceiling := b.empty(c)
	return b.against(ceiling, b.onRedis(redis, c, false), func(variant string, ceiling, ours rounds) []finding {
		return []finding{{
			name: "on Redis, 10k keys: CPU us of the sidecar for a request", variant: variant,
			ceiling: ceiling.of(sampleCPU), ours: ours.of(sampleCPU), format: "%.2f", target: 3,
		}}
	})
}

func (b *bench) onRedis(redis *child, c load.Config, denied bool) func(v variant) candidate {
	return func(v variant) candidate { return b.filled(v, on(redis), c, denied) }
}

// throughputComparison compares a sidecar with the bare script. Both have the same number of outstanding calls:
// four pipelines of 64 calls each.
func throughputComparison(b *bench) []finding {
	redis := b.redis()
	const connections, pipeline, keys = 4, 64, 10_000
	script := candidate{"the bare script", func() (out sample) {
		var decisions int64
		took := metered(b, []*child{redis}, func() {
			var d time.Duration
			var err error
			decisions, d, err = bare.Run(b, bare.Config{Address: redis.address, Connections: connections, Pipeline: pipeline, Keys: keys, Duration: b.Duration})
			check(err)
			out.PerSecond = float64(decisions) / d.Seconds()
		})
		out.redisCPU = took.cpu.Seconds() * 1e6 / float64(decisions)
		return out
	}}
	c := b.loadConfig("user_id", keys)
	c.Connections, c.Outstanding = connections, pipeline
	return b.against(script, b.onRedis(redis, c, false), func(variant string, ceiling, ours rounds) []finding {
		return []finding{
			{
				name: "on Redis: decisions/s, compared with the minimal script", variant: variant,
				ceiling: ceiling.of(samplePerSecond), ours: ours.of(samplePerSecond), format: "%.0f", atLeast: true, target: 1,
			},
			{
				name: "on Redis: CPU us of Redis for a decision", variant: variant,
				ceiling: ceiling.of(sampleRedisCPU), ours: ours.of(sampleRedisCPU), format: "%.2f", target: 0.6,
			},
		}
	})
}

func leaseComparison(b *bench) []finding {
	redis := b.redis()
	return b.besideMemory(redis, b.loadConfig("leased_id", 1), false, func(variant string, ceiling, ours rounds) []finding {
		return []finding{
			{
				name: "hot key, leased: requests/s, compared with memory", variant: variant,
				ceiling: ceiling.of(samplePerSecond), ours: ours.of(samplePerSecond), format: "%.0f", atLeast: true, target: 0.8,
			},
			{
				name: "hot key, leased: CPU s of Redis for a million requests", variant: variant,
				ours: ours.of(sampleRedisCPU), format: "%.3f", target: 0.1,
			},
		}
	})
}

func deniedComparison(b *bench) []finding {
	redis := b.redis()
	return b.besideMemory(redis, b.loadConfig("hot_id", 1), true, func(variant string, ceiling, ours rounds) []finding {
		return []finding{
			{
				name: "hot key, denied: CPU us a request, compared with memory", variant: variant,
				ceiling: ceiling.of(sampleCPU), ours: ours.of(sampleCPU), format: "%.2f", target: 1.1,
			},
			{
				name: "hot key, denied: calls to Redis a second", variant: variant,
				ours: ours.of(sampleRedisCalls), format: "%.2f", target: 1,
			},
		}
	})
}

func openComparison(b *bench) []finding {
	redis := b.redis()
	c := b.loadConfig("user_id", 10_000)
	c.Rate = 5000
	ceiling := b.empty(c)
	return b.against(ceiling, b.onRedis(redis, c, false), func(variant string, ceiling, ours rounds) []finding {
		return []finding{
			{
				name: "5,000/s on Redis, open loop: p99 ms", variant: variant,
				ceiling: ceiling.of(sampleP99), ours: ours.of(sampleP99), format: "%.2f", target: 1.5,
			},
			{
				name: "5,000/s on Redis, open loop: CPU us of the sidecar for a request", variant: variant,
				ceiling: ceiling.of(sampleCPU), ours: ours.of(sampleCPU), format: "%.1f", target: 1.5,
			},
		}
	})
}

// benchKey is the length of a bucket's key in bytes. The parts of a key are:
//
//   - the version and the algorithm, one byte each
//   - the domain, the namespace and the id of the limit, each after its length
//   - a byte for the form of the values
//   - the value after its length
const benchKey = 2 + len("\x05bench\x04path\x07user_id") + 1 + len("\x0800000000")

// sizeComparison measures the memory of buckets. For each variant it starts a new server and sends it many keys,
// each once.
func sizeComparison(b *bench) (found []finding) {
	keys := b.keysMany()
	c := b.loadConfig("user_id", keys)
	c.InTurn, c.Requests = true, int64(keys)
	for _, v := range b.variants() {
		var bucket, resident []float64
		for range b.Repeats {
			empty, full := b.resident(v, c)
			bucket = append(bucket, float64(full-empty)/float64(keys)-float64(benchKey))
			resident = append(resident, float64(full)/(1<<20))
		}
		found = append(found,
			finding{name: fmt.Sprintf("memory: bytes of a bucket without its key of %d bytes", benchKey), variant: v.label, ours: bucket, format: "%.0f", target: 100},
			finding{name: fmt.Sprintf("memory: MiB resident with %s keys", thousands(keys)), variant: v.label, ours: resident, format: "%.0f", target: 150})
	}
	return found
}

// resident returns the resident memory of a new server in bytes, before the requests of c and after them.
func (b *bench) resident(v variant, c load.Config) (empty, full int64) {
	s := must(b.sidecarOf(v).start(b, b.dir, c))
	defer s.stop()
	memory := func() int64 {
		now, _, err := load.Memory(s.pid())
		check(err)
		return now
	}
	empty = memory()
	_ = must(measureRequests(b.app, s, c, false))
	return empty, memory()
}
