package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
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
)

// The tests of this file check that rlsidecar does not have known bugs of the reference server. Each test has
// the name of a bug, and uses that server's environment and files. Numbers like #785 are issues of
// envoyproxy/ratelimit.

// inMemory also makes the test parallel.
func inMemory(t *testing.T, limits string, env ...string) *reference {
	t.Helper()
	t.Parallel()
	return newReference(t, map[string]string{"limits.yaml": limits}, append([]string{"BACKEND_TYPE=memory"}, env...)...)
}

// onRedis also makes the test parallel.
func onRedis(t *testing.T, limits string, env ...string) (*reference, *redistest.Server) {
	t.Helper()
	t.Parallel()
	redis := redistest.Start(t)
	env = append([]string{"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis.Addr}, env...)
	return newReference(t, map[string]string{"limits.yaml": limits}, env...), redis
}

func (r *reference) expect(t *testing.T, want string, texts ...string) {
	t.Helper()
	request := rlstest.Request("d")
	for _, text := range texts {
		request.Descriptors = append(request.Descriptors, rlstest.Descriptor(text))
	}
	answer, problem := r.overGRPC(t, request)
	got := problem
	if answer != nil {
		got = rlstest.Response(answer)
	}
	if got != want {
		t.Errorf("%v\n got %s\nwant %s", texts, got, want)
	}
}

const plain = `
domain: d
descriptors:
  - {key: two, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: ten, rate_limit: {unit: year, requests_per_unit: 10}}
`

// In the reference server (#1202), a request with an override of an unknown unit ended the process.
func TestBugUnknownUnitOfAnOverrideEndsTheProcess(t *testing.T) {
	r := inMemory(t, plain)
	r.expect(t, "OVER_LIMIT | OVER_LIMIT left 0", "any=a;limit=5/0")
	r.expect(t, "OVER_LIMIT | OVER_LIMIT left 0", "any=a;limit=5/99")
	r.expect(t, "OK | OK left 1 of 2/YEAR reset", "two=a;limit=5/99") // rlsidecar uses the configured limit instead of the override.
	if !r.running() {
		t.Error("the process ended")
	}
}

// In the reference server, a limit had no metadata if its metrics were named after values.
func TestBugMetadataLostWithDetailedMetric(t *testing.T) {
	r := inMemory(t, `
domain: d
descriptors:
  - {key: a, metadata: {tier: gold}, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 9}}
  - {key: b, metadata: {tier: gold}, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 9}}
`, "RESPONSE_DYNAMIC_METADATA=true")
	for _, text := range []string{"a=1", "b=1"} {
		answer, problem := r.overGRPC(t, rlstest.Request("d", rlstest.Descriptor(text)))
		if got := answer.GetDynamicMetadata().AsMap()["metadata"]; fmt.Sprint(got) != "map[tier:gold]" {
			t.Errorf("%s: got %v %s; want the metadata tier: gold", text, got, problem)
		}
	}
}

// In the reference server, if the metadata of two limits had the same key, an answer for one limit could contain the
// metadata of the other. Concurrent requests could crash the process.
func TestBugMetadataOfOneLimitLeaksIntoAnother(t *testing.T) {
	r := inMemory(t, `
domain: d
descriptors:
  - {key: a, metadata: {info: {a: 1}}, rate_limit: {unit: year, requests_per_unit: 1000000}}
  - {key: b, metadata: {info: {b: 2}}, rate_limit: {unit: year, requests_per_unit: 1000000}}
`, "RESPONSE_DYNAMIC_METADATA=true")
	metadata := func(texts ...string) string {
		request := rlstest.Request("d")
		for _, text := range texts {
			request.Descriptors = append(request.Descriptors, rlstest.Descriptor(text))
		}
		answer, err := r.rls.ShouldRateLimit(t.Context(), request)
		if err != nil {
			t.Error(err)
		}
		return fmt.Sprint(answer.GetDynamicMetadata().AsMap()["metadata"])
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				if got := metadata("a=1", "b=1"); got != "map[info:map[a:1 b:2]]" {
					t.Errorf("a request for both limits: got %s, want the metadata of both", got)
				}
			}
		})
	}
	all.Wait()
	if a, b := metadata("a=1"), metadata("b=1"); a != "map[info:map[a:1]]" || b != "map[info:map[b:2]]" {
		t.Errorf("requests for one limit each: got %s and %s, want the metadata of that limit only", a, b)
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

// The Prometheus metrics of the reference server counted hits twice if a cached denial denied them and the limit was
// below the first level of descriptors.
func TestBugOverLimitCountedTwiceWithLocalCache(t *testing.T) {
	r, _ := onRedis(t, `
domain: d
descriptors:
  - {key: a, descriptors: [{key: b, rate_limit: {unit: year, requests_per_unit: 1}}]}
`, "LOCAL_CACHE_SIZE_IN_BYTES=1000000", "RLSIDECAR_CONSUME=each")
	for range 5 {
		r.overGRPC(t, rlstest.Request("d", rlstest.Descriptor("a=1,b=1")))
	}
	if got := r.metric(`ratelimit_service_rate_limit_over_limit{domain="d",key1="a",key2="b"}`); got != "4" {
		t.Errorf("%s over the limit, want 4", got)
	}
	if strings.Contains(r.metrics(), "local_cache") {
		t.Error("the metrics contain local_cache, want no such series")
	}
}

// In the reference server (#785 and others), counters changed only every ten seconds, and a counter did not exist
// before its first event. In rlsidecar the first decision creates all counters of its limit, and counters are always
// current.
func TestBugMetricsAreLateAndAbsent(t *testing.T) {
	r := inMemory(t, plain)
	const over = `ratelimit_service_rate_limit_over_limit{domain="d",key1="two",key2=""}`
	r.overGRPC(t, rlstest.Request("d", rlstest.Descriptor("two=a")))
	if got := r.metric(over); got != "0" {
		t.Errorf("after the first request, which is allowed: %q hits over the limit, want 0", got)
	}
	for range 2 {
		r.overGRPC(t, rlstest.Request("d", rlstest.Descriptor("two=a")))
	}
	if got := r.metric(over); got != "1" {
		t.Errorf("directly after a denial: %q hits over the limit, want 1", got)
	}
}

// In the reference server, the page with the statistics on the debug port contained no statistics of limits.
func TestBugDebugPageHasNoLimits(t *testing.T) {
	r := inMemory(t, plain)
	r.overGRPC(t, rlstest.Request("d", rlstest.Descriptor("two=a")))
	if _, page := fetch("http://" + r.debug + "/metrics"); !strings.Contains(page, `ratelimit_service_rate_limit_total_hits{domain="d",key1="two"`) {
		t.Errorf("got %.300s; want the counter total_hits of key1 \"two\"", page)
	}
}

// In the reference server (#275, #1132), each value of a descriptor with an override or with detailed_metric, and
// each domain that was not configured, added one series that was never removed.
func TestBugMetricsGrowWithoutBound(t *testing.T) {
	r := inMemory(t, `
domain: d
descriptors:
  - {key: user, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 10}}
`)
	send := func(request *rls.RateLimitRequest) {
		if _, err := r.rls.ShouldRateLimit(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	flood := func(from, to int) {
		for i := from; i < to; i++ {
			send(rlstest.Request("d", rlstest.Descriptor(fmt.Sprintf("any=%d;limit=1/YEAR", i))))
			send(rlstest.Request(fmt.Sprintf("nowhere%d", i), rlstest.Descriptor("a=b")))
		}
	}
	flood(0, 1) // The first requests of each kind create the series.
	before := strings.Count(r.metrics(), "\n")
	flood(1, 300)
	if grown := strings.Count(r.metrics(), "\n") - before; grown > 20 {
		t.Errorf("300 requests of each kind added %d lines to the metrics, want at most 20", grown)
	}
	// detailed_metric adds series by value on purpose, up to 10,000.
	for i := range 10_050 {
		send(rlstest.Request("d", rlstest.Descriptor(fmt.Sprintf("user=%d", i))))
	}
	if n := strings.Count(r.metrics(), "ratelimit_service_rate_limit_total_hits{"); n < 10_000 || n > 10_010 {
		t.Errorf("%d series, want 10,000 to 10,010", n)
	}
}

// With memcached the reference server never became ready, and limits by month and year had no effect.
func TestBugMemcacheIsNeverReady(t *testing.T) {
	t.Parallel()
	r := launchReference(t, nil, "BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=localhost:11211")
	r.refuses(t, 2, "set redis (with REDIS_URL) or memory")
}

// A client that watched the health check kept the reference server (#1103) from ending. The server closed its port
// before clients had noticed that it was not healthy.
func TestBugHealthWatchBlocksTheEnd(t *testing.T) {
	r := inMemory(t, plain, "RLSIDECAR_DRAIN_DELAY=300ms")
	watch, err := r.health.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "ratelimit"})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := watch.Recv(); err != nil || first.Status != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("got %v, %v; want SERVING", first, err)
	}
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if next, err := watch.Recv(); err != nil || next.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Fatalf("got %v, %v; want NOT_SERVING", next, err)
	}
	r.expect(t, "OK | OK left 1 of 2/YEAR reset", "two=a") // Requests are still answered while the server drains.
	select {
	case <-r.exited:
	case <-time.After(maxWait):
		t.Error("the process does not end")
	}
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

// In the reference server, SIGHUP ended the process, although it makes other servers read their files again.
func TestBugHangupEndsTheProcess(t *testing.T) {
	r := inMemory(t, plain)
	before := r.metric("ratelimit_service_config_load_success")
	if err := r.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the files are read again", func() bool { return r.metric("ratelimit_service_config_load_success") > before })
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
		if _, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), rlstest.Request("d", rlstest.Descriptor("two=a"))); err != nil {
			t.Error(err)
		}
		conn.Close()
		r.kill()
		if _, err := os.Stat(socket); err != nil {
			t.Fatal("the killed process left no file of its socket")
		}
	}
}

// After a mistake in the first configuration the reference server ran, but answered each call with an error. Proxies
// that fail open allowed all requests.
func TestBugBadFirstConfigurationRunsWithoutLimits(t *testing.T) {
	t.Parallel()
	r := launchReference(t, map[string]string{"limits.yaml": "domain: d\ndescriptors: [{key: k, rate_limit: {unit: fortnight, requests_per_unit: 1}}]\n"}, "BACKEND_TYPE=memory")
	r.killed = true // rlsidecar ends with an error
	select {
	case <-r.exited:
	case <-time.After(maxWait):
		t.Fatal("the process runs, want that it ends with an error")
	}
	if out := r.output.tail(); r.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(out, "limits.yaml:2:") || !strings.Contains(out, "invalid rate limit unit 'fortnight'") {
		t.Errorf("%d: got %s; want exit code 1 and the mistake in limits.yaml:2", r.cmd.ProcessState.ExitCode(), out)
	}
}

// In the reference server, no port was open before Redis had answered, not even the port of the health check.
func TestBugNoPortBeforeRedisAnswers(t *testing.T) {
	t.Parallel()
	r := newReference(t, map[string]string{"limits.yaml": plain}, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=127.0.0.1:1")
	r.expect(t, "OVER_LIMIT | OVER_LIMIT left 0", "two=a")
	r.expect(t, "OK | OK left 0", "nothing=a")
}

// In the reference server (#462, #978, #1188), calls hung while Redis stalled, because REDIS_TIMEOUT applied only to
// connecting.
func TestBugCallsHangWhileRedisStalls(t *testing.T) {
	r, redis := onRedis(t, plain, "REDIS_TIMEOUT=60s", "RLSIDECAR_BACKEND_TIMEOUT=50ms")
	redis.Pause()
	defer redis.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), maxWait)
	defer cancel()
	for range 50 {
		answer, err := r.rls.ShouldRateLimit(ctx, rlstest.Request("d", rlstest.Descriptor("two=a")))
		if err != nil || answer.OverallCode != rls.RateLimitResponse_OVER_LIMIT {
			t.Fatalf("got %v, %v; want OVER_LIMIT", answer, err)
		}
	}
}

// While Redis failed, /json of the reference server answered 400 Bad Request, although the request was correct.
func TestBugJSONReportsBadRequestForRedisErrors(t *testing.T) {
	t.Parallel()
	r := newReference(t, map[string]string{"limits.yaml": plain}, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=127.0.0.1:1", "RLSIDECAR_ON_BACKEND_FAILURE=error")
	if _, problem := r.overHTTP(t, rlstest.Request("d", rlstest.Descriptor("two=a"))); !strings.HasPrefix(problem, "Unavailable: ") {
		t.Errorf("got %q, want the code Unavailable", problem)
	}
}

// After a restart or a failover of Redis, the reference server (#750) had to be restarted.
func TestBugRedisIsNotFoundAgain(t *testing.T) {
	r, redis := onRedis(t, plain)
	r.expect(t, "OK | OK left 1 of 2/YEAR reset", "two=a")
	redis.Kill()
	r.expect(t, "OVER_LIMIT | OVER_LIMIT left 0", "two=a")
	redis.Restart()
	eventually(t, "limits count again", func() bool {
		answer, _ := r.overGRPC(t, rlstest.Request("d", rlstest.Descriptor("two=b;hits=0")))
		return answer.GetOverallCode() == rls.RateLimitResponse_OK
	})
}

// In the reference server (#427, #440, #1060), if one limit denied a request, the other limits were charged
// nevertheless.
func TestBugDenialsConsumeOtherLimits(t *testing.T) {
	r, _ := onRedis(t, plain)
	for range 5 {
		r.overGRPC(t, rlstest.Request("d", rlstest.Descriptor("two=a"), rlstest.Descriptor("ten=a")))
	}
	r.expect(t, "OK | OK left 8 of 10/YEAR reset", "ten=a;hits=0")
}

// In the reference server, a denial of 5 hits consumed the 3 units that were left. In rlsidecar such an answer shows
// 0 remaining, but the 3 units are still available.
func TestBugDenialBurnsTheWindow(t *testing.T) {
	r := inMemory(t, plain)
	r.expect(t, "OK | OK left 3 of 10/YEAR reset", "ten=a;hits=7")
	r.expect(t, "OVER_LIMIT | OVER_LIMIT left 0 of 10/YEAR reset", "ten=a;hits=5")
	r.expect(t, "OK | OK left 0 of 10/YEAR reset", "ten=a;hits=3")
}

// In the reference server, the parts of a key in Redis were joined by "_", so that different descriptors shared a
// bucket.
func TestBugDifferentDescriptorsShareABucket(t *testing.T) {
	r, _ := onRedis(t, `
domain: d
descriptors:
  - {key: a, rate_limit: {unit: year, requests_per_unit: 1}, descriptors: [{key: b, rate_limit: {unit: year, requests_per_unit: 1}}]}
  - {key: a_b, rate_limit: {unit: year, requests_per_unit: 1}}
`)
	for _, text := range []string{"a=b_c", "a_b=c", "a=x_b_y", "a=x,b=y"} {
		r.expect(t, "OK | OK left 0 of 1/YEAR reset", text)
	}
	r.expect(t, "OK | OK left 0 of 1/YEAR reset", "a=q;limit=1/YEAR") // An override has a bucket of its own, too.
	r.expect(t, "OK | OK left 0 of 1/YEAR reset", "a=q")
}

// In the reference server (#80, #595), if a connection was lost between two commands, the key in Redis never expired.
// Each hit also extended the lifetime of a key.
func TestBugKeysThatNeverExpire(t *testing.T) {
	r, redis := onRedis(t, plain+"  - {key: quick, rate_limit: {unit: second, requests_per_unit: 5}}\n", "EXPIRATION_JITTER_MAX_SECONDS=300")
	r.expect(t, "OK | OK left 4 of 5/SECOND reset", "quick=a")
	r.expect(t, "OK | OK left 9 of 10/YEAR reset", "ten=a")
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
}

// With the local cache of the reference server, a raised limit had no effect before the next window.
func TestBugRaisedLimitIsNotSeen(t *testing.T) {
	r, _ := onRedis(t, plain, "LOCAL_CACHE_SIZE_IN_BYTES=1000000")
	for range 4 {
		r.overGRPC(t, rlstest.Request("d", rlstest.Descriptor("two=a")))
	}
	r.write(t, "limits.yaml", strings.Replace(plain, "requests_per_unit: 2", "requests_per_unit: 5", 1))
	eventually(t, "the changed file is loaded", func() bool { return r.metric("ratelimit_service_config_load_success") == "2" })
	r.expect(t, "OK | OK left 2 of 5/YEAR reset", "two=a")
}

// The reference server (#107, #262, #390, #693) refused two limits for the same descriptor.
func TestBugOneLimitForADescriptorOnly(t *testing.T) {
	r := inMemory(t, `
domain: d
descriptors:
  - key: k
    rate_limit:
      - {unit: hour, requests_per_unit: 1}
      - {unit: year, requests_per_unit: 9}
`)
	r.expect(t, "OK | OK left 0 of 1/HOUR reset", "k=a")
	r.expect(t, "OVER_LIMIT | OVER_LIMIT left 0 of 1/HOUR reset", "k=a")
}

// In the reference server (#276, #918), it was not possible to block clients that were denied too often.
func TestBugNoBlockForPersistentClients(t *testing.T) {
	const limits = `
domain: d
descriptors:
  - {key: login, rate_limit: {unit: year, requests_per_unit: 3, penalty: {after: 2, for: 100d, max: 200d}}}
`
	blocked := func(t *testing.T, r *reference) {
		t.Helper()
		r.expect(t, "OK | OK left 2 of 3/YEAR reset", "login=a")
		r.expect(t, "OVER_LIMIT | OVER_LIMIT left 0 of 3/YEAR reset", "login=a;hits=3")
		r.expect(t, "OVER_LIMIT | OVER_LIMIT left 0 of 3/YEAR reset", "login=a;hits=3")
		r.expect(t, "OVER_LIMIT | OVER_LIMIT left 0 of 3/YEAR reset", "login=a") // the block denies, although two units are left
		r.expect(t, "OVER_LIMIT | OVER_LIMIT left 0 of 3/YEAR reset", "login=a;hits=0")
		r.expect(t, "OK | OK left 2 of 3/YEAR reset", "login=b")
		answer, problem := r.overGRPC(t, rlstest.Request("d", rlstest.Descriptor("login=a")))
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
	t.Run("in memory", func(t *testing.T) { blocked(t, inMemory(t, limits)) })
	t.Run("on Redis", func(t *testing.T) {
		r, _ := onRedis(t, limits)
		blocked(t, r)
	})
}

// In the reference server (#190, #439), windows could only be one second, minute, hour, day, week, month or year
// long.
func TestBugOnlyWholeUnits(t *testing.T) {
	r := inMemory(t, `
domain: d
descriptors:
  - {key: k, rate_limit: {unit: 45d, requests_per_unit: 2}}
  - {key: k2, rate_limit: {unit: day, unit_multiplier: 45, requests_per_unit: 2}}
`)
	for _, key := range []string{"k", "k2"} {
		answer, problem := r.overGRPC(t, rlstest.Request("d", rlstest.Descriptor(key+"=a")))
		if problem != "" {
			t.Fatal(problem)
		}
		limit, left := answer.Statuses[0].CurrentLimit, answer.Statuses[0].DurationUntilReset.AsDuration()
		if limit.Unit.String() != "DAY" || limit.UnitMultiplier.GetValue() != 45 || left <= 0 || left > 45*24*time.Hour {
			t.Errorf("%s: got %v, which resets in %v; want 45 days", key, limit, left)
		}
	}
}

// In the reference server (#235, #317, #433, #438), a value could only match as a whole, or by "*".
func TestBugValuesByWildcardOnly(t *testing.T) {
	r := inMemory(t, `
domain: d
descriptors:
  - {key: path, value_prefix: /api/, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: path, value_suffix: .png, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: path, value_regex: "/v[0-9]+/.*", rate_limit: {unit: year, requests_per_unit: 3}}
`)
	r.expect(t, "OK | OK left 0 of 1/YEAR reset | OK left 1 of 2/YEAR reset | OK left 2 of 3/YEAR reset | OK left 0",
		"path=/api/x", "path=/x.png", "path=/v12/x", "path=/x")
}

// In the reference server, the process ended if metrics were sent to two places. One of them was on by default, so
// that Prometheus needed USE_STATSD=false.
func TestBugPrometheusNeedsStatsdOff(t *testing.T) {
	r := inMemory(t, plain, "USE_STATSD=")
	if r.metric("ratelimit_service_config_load_success") != "1" {
		t.Errorf("got %v; want a configuration that was loaded once", r.output.tail())
	}
}

// In the reference server (#206, #302, #367), temporary files of an editor, and the copies in a mounted ConfigMap,
// prevented the configuration from loading.
func TestBugOtherFilesBreakTheLoad(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	folder := filepath.Join(data, "ratelimit", "config")
	mount := func(name, limits string) { // the layout of a mounted ConfigMap
		at := filepath.Join(folder, name)
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "limits.yaml"), []byte(limits), 0o600); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(folder, "..data_tmp")
		if err := os.Symlink(name, link); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link, filepath.Join(folder, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	mount("..2026_01_01", plain)
	if err := os.Symlink(filepath.Join("..data", "limits.yaml"), filepath.Join(folder, "limits.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, ".limits.yaml.swp"), []byte("\x00vim"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newReference(t, nil, "BACKEND_TYPE=memory", "RUNTIME_ROOT="+data, "RUNTIME_IGNOREDOTFILES=false")
	r.expect(t, "OK | OK left 1 of 2/YEAR reset", "two=a")
	mount("..2026_01_02", strings.Replace(plain, "requests_per_unit: 2", "requests_per_unit: 5", 1))
	eventually(t, "the new one counts", func() bool {
		answer, _ := r.overGRPC(t, rlstest.Request("d", rlstest.Descriptor("two=a;hits=0")))
		return answer.Statuses[0].CurrentLimit.GetRequestsPerUnit() == 5
	})
	if got := r.metric("ratelimit_service_config_load_error"); got != "0" {
		t.Errorf("%s loads failed, want 0", got)
	}
}

// With RUNTIME_WATCH_ROOT, which is on by default, the reference server missed files that were edited in place.
func TestBugEditedFilesAreNotSeen(t *testing.T) {
	r := inMemory(t, plain, "RUNTIME_WATCH_ROOT=true")
	file := filepath.Join(r.files, "limits.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(plain, "requests_per_unit: 2", "requests_per_unit: 5", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new one counts", func() bool {
		answer, _ := r.overGRPC(t, rlstest.Request("d", rlstest.Descriptor("two=a;hits=0")))
		return answer.Statuses[0].CurrentLimit.GetRequestsPerUnit() == 5
	})
}

// Of several YAML documents in a file, the reference server (#431, #927) read only the first.
func TestBugOnlyTheFirstDocumentIsRead(t *testing.T) {
	r := inMemory(t, "domain: other\n---"+plain)
	r.expect(t, "OK | OK left 1 of 2/YEAR reset", "two=a")
}

// In the reference server, the config check ended with a stack trace if the file was not YAML or had an unknown key.
func TestBugConfigCheckPanics(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for name, text := range map[string]string{"a.yaml": "domain: d\nlimitz: 1\ndescriptors: [{key: 1.5}]\n", "b.yaml": "domain: [\n"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(sidecarProgram, "check", folder).CombinedOutput()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != 1 || strings.Contains(string(out), "goroutine") || !strings.Contains(string(out), "a.yaml:2:1") || !strings.Contains(string(out), "b.yaml:") {
		t.Errorf("%v: got %s; want exit code 1 and mistakes in both files, without a stack trace", err, out)
	}
}

// Two processes of the reference server could listen on one port without a warning. Each got half of the requests.
func TestBugSecondServerOnTheSamePort(t *testing.T) {
	r := inMemory(t, plain)
	second := launchReference(t, map[string]string{"limits.yaml": plain}, "BACKEND_TYPE=memory", "GRPC_HOST="+r.addr)
	second.refuses(t, 3, "address already in use")
}

// In the reference server, the HTTP port waited forever for the rest of an incomplete request.
func TestBugHTTPWithoutTimeouts(t *testing.T) {
	r := inMemory(t, plain)
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
}

// In the reference server (#597), errors appeared only in a counter.
func TestBugErrorsAreNotLogged(t *testing.T) {
	t.Parallel()
	r := newReference(t, map[string]string{"limits.yaml": plain}, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=127.0.0.1:1")
	if code, _ := r.get("/healthcheck"); code != http.StatusOK {
		t.Errorf("got %v; want status 200", code)
	}
	r.expect(t, "OVER_LIMIT | OVER_LIMIT left 0", "two=a")
	eventually(t, "the error is in the log", func() bool { return strings.Contains(r.output.tail(), "redis could not decide") })
}
