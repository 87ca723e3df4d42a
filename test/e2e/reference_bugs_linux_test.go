package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/rlstest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/sidecartest"
)

const plain = `
domain: d
descriptors:
  - {key: two, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: ten, rate_limit: {unit: year, requests_per_unit: 10}}
`

// raised is plain with 5 units of the first limit.
var raised = strings.Replace(plain, "requests_per_unit: 2", "requests_per_unit: 5", 1)

// noRedis is the environment of a Redis that does not exist.
var noRedis = []string{"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=127.0.0.1:1"}

// bug is a bug of the reference server that rlsidecar does not have. Numbers like #785 are issues of
// envoyproxy/ratelimit.
type bug struct {
	name   string // what the reference server does
	limits string // "" means plain
	redis  bool   // a Redis runs; otherwise the limits are in memory, unless env names another backend
	env    []string
	script string // in the format of testdata/reference/README.md
	check  func(t *testing.T, r *reference, redis *redistest.Server)
}

var bugs = []bug{
	{name: "ends at an override of an unknown unit (#1202)", script: `
		> d any=a;limit=5/0
		< OVER_LIMIT | OVER_LIMIT left 0
		> d any=a;limit=5/99
		< OVER_LIMIT | OVER_LIMIT left 0
		# rlsidecar uses the configured limit instead of the override
		> d two=a;limit=5/99
		< OK | OK left 1 of 2/YEAR reset`},
	{name: "loses the metadata of limits whose metrics are named after values", env: []string{"RESPONSE_DYNAMIC_METADATA=true"}, limits: `
domain: d
descriptors:
  - {key: a, metadata: {tier: gold}, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 9}}
  - {key: b, metadata: {tier: gold}, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 9}}
`, check: func(t *testing.T, r *reference, _ *redistest.Server) {
		for _, text := range []string{"a=1", "b=1"} {
			if got := r.metadata(t, text); got != "map[tier:gold]" {
				t.Errorf("%s: got %s; want the metadata tier: gold", text, got)
			}
		}
	}},
	// Concurrent requests could also crash the process.
	{name: "adds the metadata of one limit to the answer of another", env: []string{"RESPONSE_DYNAMIC_METADATA=true"}, limits: `
domain: d
descriptors:
  - {key: a, metadata: {info: {a: 1}}, rate_limit: {unit: year, requests_per_unit: 1000000}}
  - {key: b, metadata: {info: {b: 2}}, rate_limit: {unit: year, requests_per_unit: 1000000}}
`, check: func(t *testing.T, r *reference, _ *redistest.Server) {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 100 {
					if got := r.metadata(t, "a=1", "b=1"); got != "map[info:map[a:1 b:2]]" {
						t.Errorf("a request for both limits: got %s, want the metadata of both", got)
					}
				}
			})
		}
		all.Wait()
		if a, b := r.metadata(t, "a=1"), r.metadata(t, "b=1"); a != "map[info:map[a:1]]" || b != "map[info:map[b:2]]" {
			t.Errorf("requests for one limit each: got %s and %s, want the metadata of that limit only", a, b)
		}
	}},
	{name: "counts cached denials twice", redis: true, env: []string{"LOCAL_CACHE_SIZE_IN_BYTES=1000000", "RLSIDECAR_CONSUME=each"}, limits: `
domain: d
descriptors:
  - {key: a, descriptors: [{key: b, rate_limit: {unit: year, requests_per_unit: 1}}]}
`, script: "> d a=1,b=1\n< OK | OK left 0 of 1/YEAR reset\n" + strings.Repeat("> d a=1,b=1\n< OVER_LIMIT | OVER_LIMIT left 0 of 1/YEAR reset\n", 4) +
		`metric ratelimit_service_rate_limit_over_limit{domain="d",key1="a",key2="b"} 4`,
		check: func(t *testing.T, r *reference, _ *redistest.Server) {
			if strings.Contains(r.metrics(), "local_cache") {
				t.Error("the metrics contain local_cache, want no such series")
			}
		}},
	// In rlsidecar the first decision creates all counters of its limit, and counters are always current.
	{name: "updates counters every ten seconds, and has none before their first event (#785)", script: `
		> d two=a
		< OK | OK left 1 of 2/YEAR reset
		metric ratelimit_service_rate_limit_over_limit{domain="d",key1="two",key2=""} 0
		> d two=a
		< OK | OK left 0 of 2/YEAR reset
		> d two=a
		< OVER_LIMIT | OVER_LIMIT left 0 of 2/YEAR reset
		metric ratelimit_service_rate_limit_over_limit{domain="d",key1="two",key2=""} 1
		# the debug port of the reference server has no statistics of limits
		page /metrics ratelimit_service_rate_limit_over_limit{domain="d",key1="two",key2=""} 1`},
	{name: "has a series for each value of an override or of detailed_metric, and for each domain (#275, #1132)", limits: `
domain: d
descriptors:
  - {key: user, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 10}}
`, check: func(t *testing.T, r *reference, _ *redistest.Server) {
		send := func(request *rls.RateLimitRequest) {
			if _, err := r.rls.ShouldRateLimit(t.Context(), request); err != nil {
				t.Fatal(err)
			}
		}
		flood := func(from, to int) {
			for i := from; i < to; i++ {
				send(rlstest.Request("d", fmt.Sprintf("any=%d;limit=1/YEAR", i)))
				send(rlstest.Request(fmt.Sprintf("nowhere%d", i), "a=b"))
			}
		}
		flood(0, 1) // The first requests of each kind create the series.
		before := strings.Count(r.metrics(), "\n")
		flood(1, 300)
		if grown := strings.Count(r.metrics(), "\n") - before; grown > 20 {
			t.Errorf("300 requests of each kind added %d lines to the metrics, want at most 20", grown)
		}
		for i := range 10_050 { // detailed_metric adds series by value on purpose, up to 10,000
			send(rlstest.Request("d", fmt.Sprintf("user=%d", i)))
		}
		if n := strings.Count(r.metrics(), "ratelimit_service_rate_limit_total_hits{"); n < 10_000 || n > 10_010 {
			t.Errorf("%d series, want 10,000 to 10,010", n)
		}
	}},
	{name: "does not end while a client watches its health, and closes its port before clients notice (#1103)", env: []string{"RLSIDECAR_DRAIN_DELAY=300ms"},
		check: func(t *testing.T, r *reference, _ *redistest.Server) {
			watch, err := r.health.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "ratelimit"})
			if err != nil {
				t.Fatal(err)
			}
			if first, err := watch.Recv(); err != nil || first.Status != healthpb.HealthCheckResponse_SERVING {
				t.Fatalf("got %v, %v; want SERVING", first, err)
			}
			r.signal(t, syscall.SIGTERM)
			if next, err := watch.Recv(); err != nil || next.Status != healthpb.HealthCheckResponse_NOT_SERVING {
				t.Fatalf("got %v, %v; want NOT_SERVING", next, err)
			}
			if answer, problem := r.overGRPC(t, rlstest.Request("d", "two=a")); problem != "" || rlstest.Response(answer) != "OK | OK left 1 of 2/YEAR reset" {
				t.Errorf("while the server drains: got %v %s; want the answer of the limit", answer, problem)
			}
			select {
			case <-r.exited:
			case <-time.After(maxWait):
				t.Error("the process does not end")
			}
		}},
	{name: "ends at SIGHUP, which makes other servers read their files again", check: func(t *testing.T, r *reference, _ *redistest.Server) {
		before := r.metric("ratelimit_service_config_load_success")
		r.signal(t, syscall.SIGHUP)
		eventually(t, "the files are read again", func() bool { return r.metric("ratelimit_service_config_load_success") > before })
	}},
	{name: "opens no port before Redis has answered, and logs no errors (#597)", env: noRedis, script: `
		> d two=a
		< OVER_LIMIT | OVER_LIMIT left 0
		> d nothing=a
		< OK | OK left 0`, check: func(t *testing.T, r *reference, _ *redistest.Server) {
		eventually(t, "the error is in the log", func() bool { return strings.Contains(r.output.tail(), "redis could not decide") })
	}},
	{name: "hangs while Redis stalls, because REDIS_TIMEOUT applies only to connecting (#462, #978, #1188)", redis: true,
		env: []string{"REDIS_TIMEOUT=60s", "RLSIDECAR_BACKEND_TIMEOUT=50ms"}, check: func(t *testing.T, r *reference, redis *redistest.Server) {
			redis.Pause()
			defer redis.Resume()
			for range 50 {
				answer, err := r.rls.ShouldRateLimit(t.Context(), rlstest.Request("d", "two=a"))
				if err != nil || answer.OverallCode != rls.RateLimitResponse_OVER_LIMIT {
					t.Fatalf("got %v, %v; want OVER_LIMIT", answer, err)
				}
			}
		}},
	{name: "answers 400 at /json while Redis fails", env: append(noRedis, "RLSIDECAR_ON_BACKEND_FAILURE=error"), check: func(t *testing.T, r *reference, _ *redistest.Server) {
		if _, problem := r.overHTTP(t, rlstest.Request("d", "two=a")); !strings.HasPrefix(problem, "Unavailable: ") {
			t.Errorf("got %q, want the code Unavailable", problem)
		}
	}},
	{name: "must be restarted after a restart of Redis (#750)", redis: true, script: `
		> d two=a
		< OK | OK left 1 of 2/YEAR reset`, check: func(t *testing.T, r *reference, redis *redistest.Server) {
		redis.Kill()
		if answer, _ := r.overGRPC(t, rlstest.Request("d", "two=a")); answer.GetOverallCode() != rls.RateLimitResponse_OVER_LIMIT {
			t.Errorf("without Redis: got %v; want OVER_LIMIT", answer)
		}
		redis.Restart()
		eventually(t, "limits count again", func() bool {
			answer, _ := r.overGRPC(t, rlstest.Request("d", "two=b;hits=0"))
			return answer.GetOverallCode() == rls.RateLimitResponse_OK
		})
	}},
	{name: "charges the other limits of a denied request (#427, #440, #1060)", redis: true, script: `
		> d two=a ten=a
		< OK | OK left 1 of 2/YEAR reset | OK left 9 of 10/YEAR reset
		> d two=a ten=a
		< OK | OK left 0 of 2/YEAR reset | OK left 8 of 10/YEAR reset
		> d two=a ten=a
		< OVER_LIMIT | OVER_LIMIT left 0 of 2/YEAR reset | OK left 8 of 10/YEAR reset
		> d ten=a;hits=0
		< OK | OK left 8 of 10/YEAR reset`},
	// In rlsidecar an answer for more hits than are left shows 0 remaining, but these units are still available.
	{name: "consumes what is left at a denial of more hits", script: `
		> d ten=a;hits=7
		< OK | OK left 3 of 10/YEAR reset
		> d ten=a;hits=5
		< OVER_LIMIT | OVER_LIMIT left 0 of 10/YEAR reset
		> d ten=a;hits=3
		< OK | OK left 0 of 10/YEAR reset`},
	{name: "has one key in Redis for different descriptors, because it joins their parts with _", redis: true, limits: `
domain: d
descriptors:
  - {key: a, rate_limit: {unit: year, requests_per_unit: 1}, descriptors: [{key: b, rate_limit: {unit: year, requests_per_unit: 1}}]}
  - {key: a_b, rate_limit: {unit: year, requests_per_unit: 1}}
`, script: "> d a=b_c\nONE\n> d a_b=c\nONE\n> d a=x_b_y\nONE\n> d a=x,b=y\nONE\n# An override has a bucket of its own, too.\n> d a=q;limit=1/YEAR\nONE\n> d a=q\nONE"},
	// Each hit also extended the lifetime of a key.
	{name: "leaves keys in Redis that never expire (#80, #595)", redis: true, env: []string{"EXPIRATION_JITTER_MAX_SECONDS=300"},
		limits: plain + "  - {key: quick, rate_limit: {unit: second, requests_per_unit: 5}}\n", script: `
		> d quick=a
		< OK | OK left 4 of 5/SECOND reset
		> d ten=a
		< OK | OK left 9 of 10/YEAR reset`, check: func(t *testing.T, _ *reference, redis *redistest.Server) {
			found := 0
			for key := range strings.FieldsSeq(strings.Trim(redis.Do("keys", "rl:{}1*"), "[]")) {
				found++
				if ttl := redis.Do("pttl", key); strings.HasPrefix(ttl, "-1") {
					t.Errorf("%q never expires", key)
				}
			}
			if found == 0 {
				t.Error("Redis has no bucket, want at least that of ten")
			}
			eventually(t, "the bucket with a window of a second is gone", func() bool { return !strings.Contains(redis.Do("keys", "*"), "quick") })
		}},
	{name: "does not see a raised limit before the next window, with its cache", redis: true, env: []string{"LOCAL_CACHE_SIZE_IN_BYTES=1000000"}, script: `
		> d two=a
		< OK | OK left 1 of 2/YEAR reset
		> d two=a
		< OK | OK left 0 of 2/YEAR reset
		> d two=a
		< OVER_LIMIT | OVER_LIMIT left 0 of 2/YEAR reset
		reload limits.yaml
		> d two=a
		< OK | OK left 2 of 5/YEAR reset`},
	{name: "refuses two limits for one descriptor (#107, #262, #390, #693)", limits: `
domain: d
descriptors:
  - key: k
    rate_limit:
      - {unit: hour, requests_per_unit: 1}
      - {unit: year, requests_per_unit: 9}
`, script: `
		> d k=a
		< OK | OK left 0 of 1/HOUR reset
		> d k=a
		< OVER_LIMIT | OVER_LIMIT left 0 of 1/HOUR reset`},
	{name: "cannot block clients that are denied too often (#276, #918)", limits: penalized, script: blocked, check: isBlocked},
	{name: "cannot block clients that are denied too often, on Redis (#276, #918)", redis: true, limits: penalized, script: blocked, check: isBlocked},
	{name: "has only windows of one unit of time (#190, #439)", limits: `
domain: d
descriptors:
  - {key: k, rate_limit: {unit: 45d, requests_per_unit: 2}}
  - {key: k2, rate_limit: {unit: day, unit_multiplier: 45, requests_per_unit: 2}}
`, check: func(t *testing.T, r *reference, _ *redistest.Server) {
		for _, key := range []string{"k", "k2"} {
			answer, problem := r.overGRPC(t, rlstest.Request("d", key+"=a"))
			if problem != "" {
				t.Fatal(problem)
			}
			limit, left := answer.Statuses[0].CurrentLimit, answer.Statuses[0].DurationUntilReset.AsDuration()
			if limit.Unit.String() != "DAY" || limit.UnitMultiplier.GetValue() != 45 || left <= 0 || left > 45*24*time.Hour {
				t.Errorf("%s: got %v, which resets in %v; want 45 days", key, limit, left)
			}
		}
	}},
	{name: "matches values only as a whole, or by * (#235, #317, #433, #438)", limits: `
domain: d
descriptors:
  - {key: path, value_prefix: /api/, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: path, value_suffix: .png, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: path, value_regex: "/v[0-9]+/.*", rate_limit: {unit: year, requests_per_unit: 3}}
`, script: `
		> d path=/api/x path=/x.png path=/v12/x path=/x
		< OK | OK left 0 of 1/YEAR reset | OK left 1 of 2/YEAR reset | OK left 2 of 3/YEAR reset | OK left 0`},
	{name: "ends if metrics are sent to two places, of which one is the default", env: []string{"USE_STATSD="}, script: `metric ratelimit_service_config_load_success 1`},
	{name: "misses files that are edited in place", env: []string{"RUNTIME_WATCH_ROOT=true"}, check: func(t *testing.T, r *reference, _ *redistest.Server) {
		writeFile(t, filepath.Join(r.files, "limits.yaml"), raised)
		r.awaitRaised(t)
	}},
	{name: "reads only the first document of a file (#431, #927)", limits: "domain: other\n---" + plain, script: `
		> d two=a
		< OK | OK left 1 of 2/YEAR reset`},
	{name: "shares its port with a second server", check: func(t *testing.T, r *reference, _ *redistest.Server) {
		second := launchReference(t, map[string]string{"limits.yaml": plain}, "BACKEND_TYPE=memory", "GRPC_HOST="+r.addr)
		second.refuses(t, 3, "address already in use")
	}},
	{name: "waits forever for the rest of an HTTP request", check: func(t *testing.T, r *reference, _ *redistest.Server) {
		conn, err := net.Dial("tcp", r.addr+":8080")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := fmt.Fprintf(conn, "POST /json HTTP/1.1\r\n"); err != nil { // the rest of the request is not sent
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(maxWait))
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("an incomplete request was answered")
		} else if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			t.Error("the connection is still open")
		}
	}},
}

func TestTheReferenceServerAndItsBugs(t *testing.T) {
	t.Parallel()
	for _, b := range bugs {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			env, redis := []string{"BACKEND_TYPE=memory"}, (*redistest.Server)(nil)
			if b.redis {
				redis = redistest.Start(t)
				env = []string{"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis.Addr}
			} else if len(b.env) > 1 && b.env[0] == noRedis[0] {
				env = nil
			}
			if b.limits == "" {
				b.limits = plain
			}
			r := newReference(t, map[string]string{"limits.yaml": b.limits}, append(env, b.env...)...)
			lines := strings.Split(strings.ReplaceAll(b.script, "ONE", "< OK | OK left 0 of 1/YEAR reset"), "\n")
			(&script{T: t, r: r, send: r.overGRPC, later: map[string]string{"limits.yaml": raised}, lines: lines}).run()
			if b.check != nil {
				b.check(t, r, redis)
			} else if !r.running() {
				t.Error("the process ended")
			}
		})
	}
}

const penalized = `
domain: d
descriptors:
  - {key: login, rate_limit: {unit: year, requests_per_unit: 3, penalty: {after: 2, for: 100d, max: 200d}}}
`

// In the third request the block denies, although two units are left.
const blocked = `
	> d login=a
	< OK | OK left 2 of 3/YEAR reset
	> d login=a;hits=3
	< OVER_LIMIT | OVER_LIMIT left 0 of 3/YEAR reset
	> d login=a;hits=3
	< OVER_LIMIT | OVER_LIMIT left 0 of 3/YEAR reset
	> d login=a
	< OVER_LIMIT | OVER_LIMIT left 0 of 3/YEAR reset
	> d login=a;hits=0
	< OVER_LIMIT | OVER_LIMIT left 0 of 3/YEAR reset
	> d login=b
	< OK | OK left 2 of 3/YEAR reset`

func isBlocked(t *testing.T, r *reference, _ *redistest.Server) {
	answer, problem := r.overGRPC(t, rlstest.Request("d", "login=a"))
	if problem != "" {
		t.Fatal(problem)
	}
	// Envoy can send this duration to the client, as x-ratelimit-reset and Retry-After.
	if left := answer.Statuses[0].DurationUntilReset.AsDuration(); left < 99*24*time.Hour || left > 100*24*time.Hour {
		t.Errorf("blocked for %v, want 100 days", left)
	}
	if n := r.metric(`rlsidecar_decisions_total{domain="d",limit="login",outcome="blocked"}`); n != "4" {
		t.Errorf("%s denials by blocks are counted, want 4", n)
	}
}

// metadata returns the metadata of limits in the answer to a request with these descriptors.
func (r *reference) metadata(t *testing.T, texts ...string) string {
	t.Helper()
	request := rlstest.Request("d", texts...)
	answer, err := r.rls.ShouldRateLimit(t.Context(), request)
	if err != nil {
		t.Error(err)
	}
	return fmt.Sprint(answer.GetDynamicMetadata().AsMap()["metadata"])
}

func (r *reference) awaitRaised(t *testing.T) {
	t.Helper()
	eventually(t, "the new limit counts", func() bool {
		answer, _ := r.overGRPC(t, rlstest.Request("d", "two=a;hits=0"))
		return answer.Statuses[0].CurrentLimit.GetRequestsPerUnit() == 5
	})
}

// expect sends a request of the domain d.
func (r *reference) expect(t *testing.T, want string, texts ...string) {
	t.Helper()
	request := rlstest.Request("d", texts...)
	answer, problem := r.overGRPC(t, request)
	got := problem
	if answer != nil {
		got = rlstest.Response(answer)
	}
	if got != want {
		t.Errorf("%v\n got %s\nwant %s", texts, got, want)
	}
}

// The tests below are of bugs that need another start, or several files.

// With memcached the reference server never became ready, and limits by month and year had no effect. After a mistake in
// the first configuration it ran, but answered each call with an error: proxies that fail open allowed all requests.
func TestBugsOfTheStart(t *testing.T) {
	t.Parallel()
	launchReference(t, nil, "BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=localhost:11211").refuses(t, 2, "set redis (with REDIS_URL) or memory")
	limits := map[string]string{"limits.yaml": "domain: d\ndescriptors: [{key: k, rate_limit: {unit: fortnight, requests_per_unit: 1}}]\n"}
	r := launchReference(t, limits, "BACKEND_TYPE=memory")
	r.refuses(t, 1, "invalid rate limit unit 'fortnight'")
	if out := r.output.tail(); !strings.Contains(out, "limits.yaml:2:") {
		t.Errorf("got %s; want the mistake in limits.yaml:2", out)
	}
}

// In the reference server, if several files had wildcards at the same level, their order changed with each load.
func TestBugWildcardsOfSeveralFilesInRandomOrder(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for i := range 8 {
		files[fmt.Sprintf("%d.yaml", i)] = fmt.Sprintf("domain: d\ndescriptors: [{key: k, value: \"%s*\", rate_limit: {unit: year, requests_per_unit: %d}}]\n", "abcdefgh"[:8-i], 10+i)
	}
	r := newReference(t, files, "BACKEND_TYPE=memory", "MERGE_DOMAIN_CONFIG=true")
	for i := range 5 {
		r.expect(t, "OK | OK left 9 of 10/YEAR reset", fmt.Sprintf("k=abcdefgh%d", i))
	}
	r.expect(t, "OK | OK left 13 of 14/YEAR reset", "k=abcdx")
}

// In the reference server, a health check that named no service never failed.
func TestBugHealthWithoutANameIsAlwaysServing(t *testing.T) {
	t.Parallel()
	r := launchReference(t, nil, "BACKEND_TYPE=memory", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=127.0.0.1:1", "FORCE_START_WITHOUT_INITIAL_CONFIG=true")
	for _, name := range []string{"", "ratelimit"} {
		eventually(t, "an answer", func() bool {
			h, err := r.health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name}, grpc.WaitForReady(true))
			if err == nil && h.Status != healthpb.HealthCheckResponse_NOT_SERVING {
				t.Errorf("%q: %v without a configuration, want NOT_SERVING", name, h.Status)
			}
			return err == nil
		})
	}
}

// The reference server did not start if a crash had left the file of a socket.
func TestBugStaleSocketIsFatal(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "rls.sock")
	for range 2 {
		r := newReference(t, map[string]string{"limits.yaml": plain}, "BACKEND_TYPE=memory", "GRPC_UDS="+socket)
		conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), rlstest.Request("d", "two=a")); err != nil {
			t.Error(err)
		}
		conn.Close()
		r.kill()
		if _, err := os.Stat(socket); err != nil {
			t.Fatal("the killed process left no file of its socket")
		}
	}
}

// RUNTIME_ROOT may be a link that is replaced. healthcheck reads the variables of the server. Empty ones count as not set.
func TestTheFolderOfTheReferenceServerIsALink(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	for version, limits := range map[string]string{"v1": plain, "v2": raised} {
		writeFile(t, filepath.Join(data, version, "ratelimit", "config", "limits"), limits)
	}
	current := filepath.Join(data, "current")
	link(t, "v1", current)
	r := newReference(t, nil, "BACKEND_TYPE=memory", "RUNTIME_ROOT="+current, "RUNTIME_WATCH_ROOT=true", "SHADOW_MODE=", "RLSIDECAR_LOG_FORMAT=")
	for _, args := range [][]string{{"healthcheck"}, {"healthcheck", "--http-listen", ""}} {
		check := exec.Command(r.cmd.Path)
		check.Args = append([]string{"ratelimit"}, args...)
		check.Env = r.cmd.Env
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	r.expect(t, "OK | OK left 1 of 2/YEAR reset", "two=a")
	link(t, "v2", current)
	r.awaitRaised(t)
}

// link makes at a link to a file, in one step.
func link(t *testing.T, to, at string) {
	t.Helper()
	if err := os.Symlink(to, at+"_tmp"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(at+"_tmp", at); err != nil {
		t.Fatal(err)
	}
}

// In the reference server (#206, #302, #367), temporary files of an editor, and the copies in a mounted ConfigMap,
// prevented the configuration from loading.
func TestBugOtherFilesBreakTheLoad(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	folder := filepath.Join(data, "ratelimit", "config")
	mount := func(name, limits string) { // the layout of a mounted ConfigMap
		writeFile(t, filepath.Join(folder, name, "limits.yaml"), limits)
		link(t, name, filepath.Join(folder, "..data"))
	}
	mount("..2026_01_01", plain)
	link(t, filepath.Join("..data", "limits.yaml"), filepath.Join(folder, "limits.yaml"))
	writeFile(t, filepath.Join(folder, ".limits.yaml.swp"), "\x00vim")
	r := newReference(t, nil, "BACKEND_TYPE=memory", "RUNTIME_ROOT="+data, "RUNTIME_IGNOREDOTFILES=false")
	r.expect(t, "OK | OK left 1 of 2/YEAR reset", "two=a")
	mount("..2026_01_02", raised)
	r.awaitRaised(t)
	if got := r.metric("ratelimit_service_config_load_error"); got != "0" {
		t.Errorf("%s loads failed, want 0", got)
	}
}

// In the reference server, the config check ended with a stack trace if the file was not YAML or had an unknown key.
func TestBugConfigCheckPanics(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for name, text := range map[string]string{"a.yaml": "domain: d\nlimitz: 1\ndescriptors: [{key: 1.5}]\n", "b.yaml": "domain: [\n"} {
		writeFile(t, filepath.Join(folder, name), text)
	}
	out, err := exec.Command(sidecartest.Program, "check", folder).CombinedOutput()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != 1 || strings.Contains(string(out), "goroutine") || !strings.Contains(string(out), "a.yaml:2:1") || !strings.Contains(string(out), "b.yaml:") {
		t.Errorf("%v: got %s; want exit code 1 and mistakes in both files, without a stack trace", err, out)
	}
}
