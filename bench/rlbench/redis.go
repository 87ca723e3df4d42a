package main

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/bench/bare"
	"github.com/rlsidecar/rlsidecar/bench/load"
)

// redis is a server without persistence.
func (b *bench) redis() (*child, error) {
	if err := find(b.Redis); err != nil {
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	return b.started(startChild(b, "redis-server", address, b.Redis,
		"--bind", "127.0.0.1", "--port", port, "--dir", b.dir, "--save", "", "--appendonly", "no"))
}

// redisUse is what was asked of a Redis meanwhile.
type redisUse struct {
	cpu   time.Duration
	calls int64 // of scripts
}

// metered runs what asks redis, which may be nil.
func metered(b *bench, redis *child, run func() error) (redisUse, error) {
	if redis == nil {
		return redisUse{}, run()
	}
	before, err := usedBy(b, redis)
	if err != nil {
		return redisUse{}, err
	}
	if err := run(); err != nil {
		return redisUse{}, err
	}
	after, err := usedBy(b, redis)
	return redisUse{after.cpu - before.cpu, after.calls - before.calls}, err
}

// usedBy is what a Redis has done since it started.
func usedBy(b *bench, redis *child) (u redisUse, err error) {
	c, err := bare.Dial(b, redis.address)
	if err != nil {
		return u, err
	}
	defer c.Close()
	stats, err := c.Text("INFO", "commandstats")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(stats) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:calls="); ok {
			calls, _, _ := strings.Cut(rest, ",")
			if u.calls, err = strconv.ParseInt(calls, 10, 64); err != nil {
				return u, fmt.Errorf("redis says %q: %w", line, err)
			}
		}
	}
	u.cpu, err = load.CPU(redis.pid())
	return u, err
}
