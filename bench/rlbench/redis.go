package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

func (b *bench) redis(more ...string) (*child, error) {
	for _, program := range []string{b.Redis, "redis-cli"} {
		if err := find(program); err != nil {
			return nil, err
		}
	}
	address, port, err := freePort()
	if err != nil {
		return nil, err
	}
	return b.started(startChild(b, "redis-server", address, b.Redis, slices.Concat([]string{
		"--bind", "127.0.0.1", "--port", port, "--dir", b.dir, "--save", "", "--appendonly", "no",
	}, more)...))
}

func redisCLI(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "redis-cli", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("redis-cli %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// redisCommand sends a command to the Redis server c, and returns its answer.
func (c *child) redisCommand(ctx context.Context, words ...string) (string, error) {
	_, port, err := net.SplitHostPort(c.address)
	if err != nil {
		return "", err
	}
	return redisCLI(ctx, append([]string{"-e", "-p", port}, words...)...)
}

// redisUse is the work of Redis servers during a measurement.
type redisUse struct {
	cpu   time.Duration
	calls int64 // number of calls of scripts
}

// metered calls run, and returns the work of these Redis servers during run. servers may be empty.
func metered(b *bench, servers []*child, run func() error) (redisUse, error) {
	before, err := usedBy(b, servers)
	if err != nil {
		return redisUse{}, err
	}
	if err := run(); err != nil {
		return redisUse{}, err
	}
	after, err := usedBy(b, servers)
	return redisUse{after.cpu - before.cpu, after.calls - before.calls}, err
}

var callsOfScripts = regexp.MustCompile(`(?m)^cmdstat_(?:evalsha|fcall):calls=(\d+)`)

func usedBy(b *bench, servers []*child) (u redisUse, err error) {
	for _, s := range servers {
		stats, err := s.redisCommand(b, "INFO", "commandstats")
		if err != nil {
			return u, err
		}
		for _, match := range callsOfScripts.FindAllStringSubmatch(stats, -1) {
			calls, err := strconv.ParseInt(match[1], 10, 64)
			if err != nil {
				return u, fmt.Errorf("redis answers %q: %w", match[0], err)
			}
			u.calls += calls
		}
		cpu, err := load.CPU(s.pid())
		if err != nil {
			return u, err
		}
		u.cpu += cpu
	}
	return u, nil
}
