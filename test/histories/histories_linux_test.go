package histories

import (
	"context"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

func length(t *testing.T) time.Duration {
	text := os.Getenv("HISTORIES")
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func long(t *testing.T) {
	if os.Getenv("HISTORIES") == "" {
		t.Skip("make histories runs it")
	}
}

func repeat(t *testing.T, pause time.Duration, faults ...func()) func() {
	return func() {
		t.Helper()
		for end, i := time.Now().Add(length(t)), 0; time.Now().Before(end); i++ {
			time.Sleep(pause)
			faults[i%len(faults)]()
		}
	}
}

// TestOneRedis also kills Redis, which comes back with all acknowledged writes, because it syncs its append-only file
// at each write. It kills sidecars that hold leased units, too.
func TestOneRedis(t *testing.T) {
	for name, kinds := range map[string][]string{"charged by Redis": {"tokens", "window", "refunded", "group", "budget"}, "leased": {"leased"}} {
		t.Run(name, func(t *testing.T) {
			redis := redistest.Start(t, append(persistent, "--enable-debug-command", "yes")...)
			w := newWorld(t, 3, "--redis-url", "redis://"+redis.Addr)
			w.kinds = kinds
			victim := w.sidecars[0]
			w.run(8, repeat(t, 100*time.Millisecond,
				func() { redis.Do("CLIENT", "KILL", "TYPE", "normal") },
				func() { redis.Do("SCRIPT", "FLUSH") },
				func() { redis.Pause(); time.Sleep(150 * time.Millisecond); redis.Resume() },
				func() { redis.Do("DEBUG", "SLEEP", "0.1") },
				func() { victim.Kill(); victim.Restart() },
				func() { redis.Kill(); redis.Restart(); redis.Wait() },
			))
			if !w.check(0) {
				t.Error("the answers are not possible")
			}
			if served := w.servedFromLeases(); (served > 0) != (name == "leased") {
				t.Errorf("%.0f requests were decided from leased units, by the sidecars that run at the end", served)
			}
		})
	}
}

// persistent keeps the data of a server that is killed. A server that starts empty is dangerous on a busy machine: the
// new master seems dead, and the empty one is promoted before it has copied anything.
var persistent = []string{"--appendonly", "yes", "--appendfsync", "always"}

// TestSentinelWithConfirmation kills the master several times. Its only replica confirms every charge, so no
// answered charge may be lost.
func TestSentinelWithConfirmation(t *testing.T) {
	long(t)
	s := redistest.StartSentinels(t, persistent...)
	s.Replicas[1].Kill()
	servers := []*redistest.Server{s.Master, s.Replicas[0]}
	w := newWorld(t, 3, "--redis-url", s.URL(), "--redis-wait-replicas", "1")
	w.run(8, repeat(t, 2*time.Second, func() { failover(t, servers) }))
	if !w.check(0) {
		t.Error("the answers are not linearizable")
	}
}

// TestSentinel kills the master without confirmation by replicas. Each failover may lose charges that were not
// replicated: at most one capacity of each bucket.
func TestSentinel(t *testing.T) {
	long(t)
	s := redistest.StartSentinels(t)
	servers := append([]*redistest.Server{s.Master}, s.Replicas...)
	w := newWorld(t, 3, "--redis-url", s.URL())
	failovers := int64(0)
	w.run(8, repeat(t, 2*time.Second, func() { failovers++; failover(t, servers) }))
	if !w.check(failovers) {
		t.Error("more was lost than a failover may lose")
	}
	t.Logf("%d failovers", failovers)
}

// The test has no groups, because a group over several slots is not charged at one moment.
func TestClusterWithConfirmation(t *testing.T) {
	long(t)
	c := redistest.StartCluster(t, 3, persistent...)
	w := newWorld(t, 3, "--redis-url", c.URL(), "--redis-wait-replicas", "1")
	w.kinds = []string{"tokens", "window", "refunded", "budget"}
	shard := 0
	w.run(8, repeat(t, 2*time.Second, func() {
		failover(t, []*redistest.Server{c.Masters[shard%3], c.Replicas[shard%3]})
		shard++
	}))
	if !w.check(0) {
		t.Error("the answers are not linearizable")
	}
}

// failover kills the server that has replicas, and starts it again when another server is the master.
func failover(t *testing.T, servers []*redistest.Server) {
	t.Helper()
	var masters []*redistest.Server
	redistest.Eventually(t, "a server is the master", func() bool {
		masters = with(servers, `role:master\r\nconnected_slaves:[1-9]`)
		return len(masters) > 0
	})
	masters[0].Kill()
	redistest.Eventually(t, "another server is master", func() bool { return len(with(servers, "role:master")) > 0 })
	masters[0].Restart()
	// A busy machine can seem dead to the Sentinels, so the old master may be the master again.
	redistest.Eventually(t, "all servers but one are replicas", func() bool {
		return len(with(servers, `(?s)role:slave.*master_link_status:up`)) == len(servers)-1
	})
}

// with returns the servers that answer, and whose role with its details matches pattern.
func with(servers []*redistest.Server, pattern string) (found []*redistest.Server) {
	for _, s := range servers {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		c := s.Client()
		if regexp.MustCompile(pattern).MatchString(c.Info(ctx, "replication").Val()) {
			found = append(found, s)
		}
		c.Close()
		cancel()
	}
	return found
}
