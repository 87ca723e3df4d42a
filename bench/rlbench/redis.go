package main

import (
	"context"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

func (b *bench) redis(more ...string) *child {
	for _, program := range []string{b.Redis, "redis-cli"} {
		check(find(program))
	}
	address, port := freePort()
	return b.started(startChild(b, "redis-server", address, b.Redis, slices.Concat([]string{
		"--bind", "127.0.0.1", "--port", port, "--dir", b.dir, "--save", "", "--appendonly", "no",
	}, more)...))
}

// redisCommand sends a command to the Redis server c, and returns its answer.
func (c *child) redisCommand(ctx context.Context, words ...string) string {
	return output(exec.CommandContext(ctx, "redis-cli", append([]string{"-e", "-p", portOf(c.address)}, words...)...))
}

// redisUse is the work of Redis servers during a measurement.
type redisUse struct {
	cpu   time.Duration
	calls int64 // number of calls of scripts
}

// metered calls run, and returns the work of these Redis servers during run. servers may be empty.
func metered(b *bench, servers []*child, run func()) redisUse {
	before := usedBy(b, servers)
	run()
	after := usedBy(b, servers)
	return redisUse{after.cpu - before.cpu, after.calls - before.calls}
}

var callsOfScripts = regexp.MustCompile(`(?m)^cmdstat_(?:evalsha|fcall):calls=(\d+)`)

func usedBy(b *bench, servers []*child) (u redisUse) {
	for _, s := range servers {
		stats := s.redisCommand(b, "INFO", "commandstats")
		for _, match := range callsOfScripts.FindAllStringSubmatch(stats, -1) {
			u.calls += must(strconv.ParseInt(match[1], 10, 64))
		}
		u.cpu += must(load.CPU(s.pid()))
	}
	return u
}
