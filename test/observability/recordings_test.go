package observability

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/rlstest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

const limits = `
domain: edge
limits:
  send_message: {algorithm: token_bucket, rate: 10, period: 1m, capacity: 20}
  observed: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 1}
descriptors:
  - {key: user_id, limit: send_message}
  - {key: client, limit: observed, shadow_mode: true}
`

const mixed = `
domain: edge
limits:
  send_message: {algorithm: token_bucket, rate: 1000, period: 1m, capacity: 2000, lease: {max: 10%, for: 250ms}}
  export: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 1}
  observed: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 1}
descriptors:
  - {key: user_id, limit: send_message}
  - {key: account, limit: export}
  - {key: client, limit: observed, shadow_mode: true}
auth:
  trusted_proxies: [127.0.0.1]
  routes: [{descriptors: [[{key: user_id, from: client_ip}]]}]
---
` + reserving

const reserving = `
domain: ai
require: [user]
settle: {key: settle, end: settle_end}
limits:
  tokens: {algorithm: token_bucket, rate: 1000, period: 1m, settle: {estimate: 100}}
descriptors: [{key: user, limit: tokens}]
`

type recording struct{ before, after map[string]sample }

func (s *sidecar) record(t *testing.T, happens func()) recording {
	t.Helper()
	before := s.scrape(t)
	happens()
	return recording{before, s.scrape(t)}
}

// recordings returns recordings of real sidecars, by name. "healthy" has no problem, and each of the others
// shows one problem or feature. All tests share them.
func recordings(t *testing.T) map[string]recording {
	t.Helper()
	tooltest.Path(t, "redis-server") // skips the test if Redis is missing
	recordOnce.Do(func() {
		made := map[string]recording{}
		withRedis(t, made)
		inMemory(t, made)
		withoutControlPlane(t, made)
		recorded = made // keeps the recordings only if no test has failed
	})
	if recorded == nil {
		t.Fatal("the recordings failed; another test reports the reason")
	}
	return recorded
}

var (
	recordOnce sync.Once
	recorded   map[string]recording
)

func withRedis(t *testing.T, made map[string]recording) {
	t.Helper()
	server := redistest.Start(t)
	s := startSidecar(t, limits, "--redis-url", "redis://"+server.Addr, "--backend-timeout", "2s") // long enough for a busy machine
	traffic := func(s *sidecar) {
		for _, user := range strings.Split("abcdefghijklmnopqrst", "") {
			s.send(t, 2, "edge", "user_id", user)
		}
		s.send(t, 2, "edge", "client", "curl")
	}
	normal := func() { server.Do("flushall"); traffic(s) } // deletes all buckets first, so that new ones have all their units
	made["healthy"] = s.record(t, normal)
	made["mixed"] = mixedTraffic(t, server.Addr)
	made["attack on one key"] = s.record(t, func() { normal(); s.send(t, 300, "edge", "user_id", "eve") })
	made["a typo in the domain"] = s.record(t, func() { normal(); s.send(t, 20, "egde", "user_id", "bob") })
	made["a typo in a descriptor key"] = s.record(t, func() { normal(); s.send(t, 20, "edge", "userid", "bob") })
	made["requests without a domain"] = s.record(t, func() { normal(); s.send(t, 20, "", "user_id", "bob") })

	paused := startSidecar(t, limits, "--redis-url", "redis://"+server.Addr)
	traffic(paused)
	server.Pause()
	made["Redis paused"] = paused.record(t, func() { traffic(paused) })
	server.Resume()

	slow := startSidecar(t, limits, "--redis-url", "redis://"+server.Addr, "--backend-timeout", "3s")
	traffic(slow)
	made["Redis is slow"] = slow.record(t, func() {
		server.Do("client", "pause", 1600, "all")
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() { slow.send(t, 1, "edge", "user_id", fmt.Sprint("slow", i)) })
		}
		wg.Wait()
	})
	evicting := startSidecar(t, limits, "--redis-url", "redis://"+redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru").Addr)
	redistest.Eventually(t, "it is known that Redis may evict", func() bool { return evicting.exports(t, "rlsidecar_backend_unfit") })
	made["Redis that may evict"] = evicting.record(t, func() {})

	locked := redistest.Start(t, "--requirepass", "right")
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := startSidecar(t, limits, "--redis-url", "redis://"+locked.Addr, "--redis-password-file", password)
	redistest.Eventually(t, "it is known that Redis refuses the password", func() bool { return refused.exports(t, "rlsidecar_conditions") })
	made["a wrong Redis password"] = refused.record(t, func() {})

	made["a bad reload"] = s.record(t, func() {
		s.write(t, limits+"nonsense: 1\n")
		redistest.Eventually(t, "the configuration is refused", func() bool {
			return s.exports(t, `rlsidecar_config_reloads_total{instance="10.0.0.1:9090", job="rlsidecar", namespace="edge", result="failure"}`)
		})
	})
}

// mixedTraffic records a sidecar that gets all kinds of requests over all of its listeners.
func mixedTraffic(t *testing.T, redis string) recording {
	t.Helper()
	s := startSidecar(t, mixed, "--redis-url", "redis://"+redis, "--backend-timeout", "2s")
	conn, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return s.record(t, func() {
		for i := range 40 {
			user := fmt.Sprint("user", i%4)
			if _, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), rlstest.Request("edge", "user_id="+user)); err != nil {
				t.Fatal(err)
			}
			s.send(t, 1, "edge", "user_id", user)
			s.send(t, 1, "edge", "account", user)
			s.send(t, 1, "edge", "client", user)
			s.post(t, "/v1/limit", `{"domain": "edge", "name": "send_message", "key": "`+user+`"}`)
			if response, err := http.Get("http://" + s.HTTP + "/v1/auth"); err != nil || response.Body.Close() != nil {
				t.Fatal(err)
			}
		}
		s.post(t, "/v1/limit", `{"reservation": "`+s.reserve(t)+`", "count": 50}`)
		s.send(t, 1, "ai", "settle_end", "made-up")
		s.send(t, 1, "ai", "app", "x")         // lacks the user
		s.send(t, 1, "edge", "userid", "bob")  // matches no limit
		s.send(t, 1, "egde", "user_id", "bob") // is not configured
		s.send(t, 1, "", "user_id", "bob")     // is refused
		s.send(t, 1, "edge", "user_id", "bob"+strings.Repeat(`"},{"key":"user_id","value":"bob`, 20))
		s.write(t, strings.Replace(mixed, "rate: 1000", "rate: 900", 1))
		redistest.Eventually(t, "the change is loaded", func() bool {
			return s.scrape(t)[`rlsidecar_config_reloads_total{instance="10.0.0.1:9090", job="rlsidecar", namespace="edge", result="success"}`].value == 2
		})
	})
}

// reserve makes a reservation, and returns its id.
func (s *sidecar) reserve(t *testing.T) string {
	t.Helper()
	_, id, _ := strings.Cut(s.post(t, "/v1/limit", `{"domain": "ai", "name": "tokens", "key": "bob", "reserve": true}`), `"reservation":"`)
	id, _, _ = strings.Cut(id, `"`)
	return id
}

// exports reports whether s has a value above 0 for a series whose name begins with series.
func (s *sidecar) exports(t *testing.T, series string) bool {
	t.Helper()
	for name, v := range s.scrape(t) {
		if strings.HasPrefix(name, series) && v.value > 0 {
			return true
		}
	}
	return false
}

func inMemory(t *testing.T, made map[string]recording) {
	t.Helper()
	small := startSidecar(t, limits, "--memory-max-keys", "10")
	made["memory full"] = small.record(t, func() {
		for _, user := range strings.Split("abcdefghijklmnopqrst", "") {
			small.send(t, 1, "edge", "user_id", user)
		}
	})
	unsettled := startSidecar(t, reserving)
	made["proxies that do not know the costs"] = unsettled.record(t, func() {
		for range 8 {
			unsettled.send(t, 1, "ai", "settle_end", unsettled.reserve(t))
		}
	})
	t.Setenv("RLSIDECAR_HTTP_MAX_CONNECTIONS", "4")
	crowded := startSidecar(t, limits)
	t.Setenv("RLSIDECAR_HTTP_MAX_CONNECTIONS", "")
	made["no connection left"] = crowded.record(t, func() {
		for range 30 {
			c, err := net.Dial("tcp", crowded.HTTP)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}
		redistest.Eventually(t, "connections are refused", func() bool { return crowded.exports(t, "rlsidecar_connections_refused_total") })
	})
}

func withoutControlPlane(t *testing.T, made map[string]recording) {
	t.Helper()
	s := startSidecar(t, "", "--xds-server", "127.0.0.1:1", "--start-without-config")
	made["no control plane"] = s.record(t, func() {})
}
