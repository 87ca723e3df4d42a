package redis

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func TestValuesHaveTheDocumentedSize(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	server, store := started(t)
	const s = algorithms.Second
	for name, spec := range map[string]algorithms.Spec{
		"token bucket, leaky bucket": {Kind: algorithms.TokenBucket, Rate: 10, Period: s * 60},
		"fixed window":               {Kind: algorithms.FixedWindow, Rate: 10, Period: s * 60},
		"sliding window":             {Kind: algorithms.SlidingWindow, Rate: 10, Period: s * 60},
		"guaranteed minimum":         {Kind: algorithms.TokenBucket, Rate: 10, Period: s * 60, Minimum: &algorithms.Rate{Units: 1, Period: s}},
	} {
		row := regexp.MustCompile(`(?m)^\| ` + name + ` \| (\d+) \| (\d+) \|$`).FindSubmatch(text)
		if row == nil {
			t.Errorf("docs/redis.md has no row for a %s", name)
			continue
		}
		key := fmt.Sprintf("%-31s", name)
		c := backend.Charge{Key: []byte(key), Limit: compiled(t, spec), Terms: algorithms.Charge{Cost: 1}}
		if d := takeAll(store, []backend.Charge{c}); !d[0].Allowed {
			t.Fatalf("%s: got %+v; want allowed", name, d[0])
		}
		if got := server.Do("STRLEN", "rl:{}"+key); got != string(row[1]) {
			t.Errorf("a %s has %s bytes; docs/redis.md says %s", name, got, row[1])
		}
		t.Logf("%s: MEMORY USAGE %s", name, server.Do("MEMORY", "USAGE", "rl:{}"+key))
	}
}

// docs/http-api.md states that an ID needs about 150 bytes, and 41 more for each limit.
func TestRecordsHaveTheDocumentedSize(t *testing.T) {
	t.Parallel()
	server, store := started(t)
	client := server.Client()
	for limits := range 8 {
		server.Do("FLUSHALL")
		var group []backend.Charge
		for i := range limits + 1 {
			group = append(group, backend.Charge{Key: fmt.Appendf(nil, "bucket %d", i), Limit: limitOf(9), Terms: algorithms.Charge{Cost: 1}})
		}
		if d := takeAll(store, underID(1, group...)); !d[0].Allowed {
			t.Fatalf("got %+v; want allowed", d[0])
		}
		for _, key := range client.Keys(t.Context(), "*").Val() {
			if strings.Contains(key, "bucket") {
				continue
			}
			got, want := client.MemoryUsage(t.Context(), key).Val(), int64(150+41*(limits+1))
			if got < want-50 || got > want+50 {
				t.Errorf("the record of %d limits needs %d bytes; docs/http-api.md says about %d", limits+1, got, want)
			}
		}
	}
}

// docs/redis.md states that each sidecar has up to 10 connections to each server.
func TestConnectionsToAServerAreBounded(t *testing.T) {
	t.Parallel()
	server, store := started(t)
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr, PoolSize: 1})
	t.Cleanup(func() { client.Close() })
	var callers sync.WaitGroup
	for n := range 64 {
		callers.Go(func() {
			for i := range 50 {
				c := backend.Charge{Key: fmt.Appendf(nil, "%d", n), Limit: limitOf(100), Terms: algorithms.Charge{Cost: 1}}
				takeAll(store, underID(uint32(n*100+i), c))
				takeAll(store, []backend.Charge{c})
				chargeClaimed(store, underID(uint32(n*100+i+50), c), decidedAs(true)) // a claim needs a connection of the pool
			}
		})
	}
	done := make(chan struct{})
	go func() { callers.Wait(); close(done) }()
	most := 0
	for {
		most = max(most, strings.Count(client.ClientList(t.Context()).Val(), "\n")-1) // not counting the client of this test
		select {
		case <-done:
			if most < 3 || most > 10 {
				t.Errorf("%d connections at the same time, want 3 to 10", most)
			}
			return
		case <-time.After(time.Millisecond):
		}
	}
}
