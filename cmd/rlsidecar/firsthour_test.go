package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

func (x *started) tool(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out output
	code := run(t.Context(), append(args, "--admin-listen", x.admin), nil, &out, &out)
	return code, out.String()
}

// The entries have the form key=value.
func (x *started) send(t *testing.T, domain string, entries ...string) int {
	t.Helper()
	var list []string
	for _, entry := range entries {
		key, value, _ := strings.Cut(entry, "=")
		list = append(list, fmt.Sprintf(`{"key":%q,"value":%q}`, key, value))
	}
	code, _ := fetch(t, http.MethodPost, "http://"+x.http+"/json", fmt.Sprintf(`{"domain":%q,"descriptors":[{"entries":[%s]}]}`, domain, strings.Join(list, ",")))
	return code
}

func contains(t *testing.T, condition, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %q:\n%s", condition, want, text)
		}
	}
}

func TestRequestsThatMatchNoLimitAreReported(t *testing.T) {
	x := startServe(t, "--config", write(t, counted))
	if code, out := x.tool(t, "top", "--unmatched"); code != exitDone || !strings.HasPrefix(out, "every request matched a limit since ") {
		t.Errorf("before the first request: exit code %d, want %d and no unmatched request: %s", code, exitDone, out)
	}
	for i := range 3 {
		if code := x.send(t, "d", fmt.Sprintf("dany=secret%d", i)); code != 200 {
			t.Fatalf("a typo in a key: status %d, want 200", code)
		}
	}
	if code := x.send(t, "c", "deny=secret"); code != 200 {
		t.Fatalf("a typo in a domain: status %d, want 200", code)
	}
	if code := x.send(t, "d", "deny=1"); code != 200 {
		t.Fatalf("no typo: status %d, want 200", code)
	}
	_, out := x.tool(t, "top", "--unmatched")
	contains(t, "top --unmatched", out, "at least 3  no limit matches  d       dany", "at least 1  no such domain    c       deny")
	_, top := x.tool(t, "top")
	contains(t, "top", top, "no request was denied", "at least 4 requests matched no limit", "top --unmatched")
	_, api := x.get(t, x.admin, "/api/unmatched")
	contains(t, "/api/unmatched", api, `"domain":"d","configured":true,"descriptors":["dany"]`, `"requests":3`)
	_, metrics := x.get(t, x.admin, "/metrics")
	contains(t, "/metrics", metrics, `rlsidecar_requests_unmatched_total{domain="d"} 3`, `rlsidecar_requests_unmatched_total{domain=""} 1`)
	contains(t, "the log", x.log.String(), `requests match no limit and are allowed`, `"domain": "d", "descriptors": "dany"`)
	for where, text := range map[string]string{"top": out, "the API": api, "the log": x.log.String()} {
		if strings.Contains(text, "secret") {
			t.Errorf("%s shows a value:\n%s", where, text)
		}
	}
}

func TestAuthWithoutAnAuthSection(t *testing.T) {
	x := startServe(t, "--config", write(t, counted))
	contains(t, "the log at the start", x.log.String(), "WARN", "no auth section: /v1/auth")
	if strings.Contains(x.log.String(), "ERROR") {
		t.Errorf("the log has an ERROR before the first request; want only a warning:\n%s", x.log)
	}
	for range 2 {
		if code, _ := x.get(t, x.http, "/v1/auth/nginx"); code != 403 {
			t.Errorf("/v1/auth/nginx: status %d, want 403", code)
		}
	}
	if n := strings.Count(x.log.String(), "a proxy calls /v1/auth, and the configuration has no auth section"); n != 1 {
		t.Errorf("the log has the reason %d times, want 1:\n%s", n, x.log)
	}
	_, out := x.get(t, x.admin, "/api/conditions")
	contains(t, "/api/conditions", out, "auth-not-configured", "every such request is denied")
	_, top := x.tool(t, "top")
	contains(t, "top", top, "\n2 ", "  no-auth")
}

const penalized = `domain: d
limits:
  send: {algorithm: token_bucket, rate: 1, period: 1m, capacity: 1, penalty: {after: 2, for: 5m, max: 1h}}
descriptors:
  - {key: user, limit: send}
`

func TestAPenaltyIsNamed(t *testing.T) {
	redis := redistest.Start(t)
	for where, args := range map[string][]string{"memory": nil, "redis": {"--redis-url", "redis://" + redis.Addr, "--backend-timeout", "3s"}} {
		t.Run(where, func(t *testing.T) {
			x := startServe(t, append([]string{"--config", write(t, penalized)}, args...)...)
			for i, want := range []int{200, 429, 429, 429, 429} {
				if code := x.send(t, "d", "user=bob"); code != want {
					t.Fatalf("request %d: %d, want %d", i, code, want)
				}
			}
			code, out := x.tool(t, "get", "send", "bob")
			if code != exitDone {
				t.Errorf("get: exit code %d, want %d", code, exitDone)
			}
			contains(t, "get", out, "the bucket of bob of limit send is blocked for 4m5", "until 20", "by its penalty")
			if !strings.Contains(out, "0          1   4m5") {
				t.Errorf("want the end of the block, 4m5…, as FULL IN:\n%s", out)
			}
			_, api := x.get(t, x.admin, "/api/buckets?limit=send&key=bob")
			contains(t, "/api/buckets", api, `"blocked_by":"penalty"`, `"blocked_for_ms":29`)
			_, top := x.tool(t, "top")
			contains(t, "top", top, "penalty  d       send   user=bob")
			if code, out := x.tool(t, "reset", "send", "bob"); code != exitDone {
				t.Errorf("reset: exit code %d, want %d: %s", code, exitDone, out)
			}
			if _, out := x.tool(t, "get", "send", "bob"); strings.Contains(out, "blocked") {
				t.Errorf("after the reset, want no blocked bucket:\n%s", out)
			}
		})
	}
}

const login = `domain: edge
descriptors:
  - key: path
    value: /login
    descriptors:
      - {key: remote_address, rate_limit: {name: login_address, unit: year, requests_per_unit: 1}}
  - {key: a, rate_limit: {name: twice, unit: year, requests_per_unit: 1}}
  - {key: b, rate_limit: {name: twice, unit: year, requests_per_unit: 1}}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}
`

// Only the reference server's metrics and /rlconfig use the place of a limit in the configuration. If several limits
// share a name, as the reference server allows, each is known by its place.
func TestAConfiguredNameIsUsedEverywhere(t *testing.T) {
	file := write(t, login)
	x := startServe(t, "--config", file)
	for _, entries := range [][]string{{"path=/login", "remote_address=::1"}, {"a=1"}, {"user=bob"}} {
		for _, want := range []int{200, 429} {
			if code := x.send(t, "edge", entries...); code != want {
				t.Fatalf("%v: %d, want %d", entries, code, want)
			}
		}
	}
	_, top := x.tool(t, "top")
	contains(t, "top", top, "edge    login_address  path=/login,remote_address=::1", "edge    a              a=1")
	code, get := x.tool(t, "get", "login_address", "::1")
	contains(t, "get", get, "edge    login_address  ::1  0          1")
	if code != exitDone {
		t.Errorf("get: exit code %d, want %d", code, exitDone)
	}
	code, get = x.tool(t, "get", "login_address")
	contains(t, "get without a key", get, "the key has no value; a bucket of this limit is identified by 1 value (remote_address)")
	if code != exitUsage {
		t.Errorf("get without a key: exit code %d, want %d", code, exitUsage)
	}
	if code, out := x.tool(t, "reset", "login_address", "::1"); code != exitDone || !strings.Contains(out, "of limit login_address in domain edge") {
		t.Errorf("reset: exit code %d, want %d: %s", code, exitDone, out)
	}
	if code := x.send(t, "edge", "path=/login", "remote_address=::1"); code != 200 {
		t.Errorf("after the reset: status %d, want 200", code)
	}
	if code, out := x.tool(t, "get", "user", "bob"); code != exitDone || !strings.Contains(out, "edge    user   bob  0          1") {
		t.Errorf("a limit without a name, by its place: exit code %d, want %d: %s", code, exitDone, out)
	}
	_, api := x.get(t, x.admin, "/api/buckets?limit=login_address&key=::1")
	contains(t, "/api/buckets", api, `"name":"login_address"`)
	_, metrics := x.get(t, x.admin, "/metrics")
	contains(t, "/metrics", metrics, `rlsidecar_decisions_total{domain="edge",limit="login_address",outcome="denied"} 1`,
		`ratelimit_service_rate_limit_total_hits{domain="edge",key1="path_/login",key2="remote_address"}`)
	_, config := x.get(t, x.admin, "/rlconfig")
	contains(t, "/rlconfig", config, "edge.path_/login.remote_address: unit=YEAR")
	var out output
	if code := run(t.Context(), []string{"explain", "--config", file, "path=/login,remote_address=::1"}, nil, &out, &out); code != exitDone {
		t.Errorf("explain: exit code %d, want %d", code, exitDone)
	}
	contains(t, "explain without --domain", out.String(), "limit login_address (")
}

func TestExplainNeedsADomainOnlyIfThereAreSeveral(t *testing.T) {
	var out output
	code := run(t.Context(), []string{"explain", "--config", write(t, counted), "--config", write(t, login), "user=bob"}, nil, &out, &out)
	if code != exitUsage {
		t.Errorf("exit code %d, want %d", code, exitUsage)
	}
	contains(t, "explain", out.String(), "--domain", "d, edge")
}

func TestServeSuggestsTheRightText(t *testing.T) {
	running := startServe(t, "--config", write(t, counted))
	file := write(t, counted)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"serve", file}, exitUsage, "a configuration is given by --config: rlsidecar serve --config " + file},
		{[]string{"serve", "limits.yaml"}, exitUsage, "rlsidecar serve --config limits.yaml"},
		{[]string{"serve", "--config", file, "--http-listen", "8080"}, exitUsage, "--http-listen 8080 is a port without an address: write 127.0.0.1:8080"},
		{[]string{"serve", "--config", file, "--grpc-listen", running.grpc}, exitFailed, "another process listens there; stop it, or give another address with --grpc-listen"},
		{[]string{"serve", "--config", file, "--grpc-listen", "127.0.0.1:0", "--http-listen", running.http}, exitFailed, "with --http-listen"},
	} {
		var out output
		if code := run(t.Context(), c.args, nil, &out, &out); code != c.code || !strings.Contains(out.String(), c.want) {
			t.Errorf("%v: exit %d, want %d and %q:\n%s", c.args, code, c.code, c.want, out.String())
		}
	}
}

const tokenBudget = `
domain: ai
settle: {key: settle, end: settle_end}
limits:
  tokens: {algorithm: token_bucket, rate: 1000, period: 1m, settle: {estimate: 150}}
descriptors: [{key: user, limit: tokens}]
`

func TestGetDescribesReservations(t *testing.T) {
	_, out := startServe(t, "--config", write(t, tokenBudget)).tool(t, "get", "tokens", "bob")
	contains(t, "get", out, "limit tokens: a request reserves 150 units until its real cost is known (the configured estimate)",
		"this sidecar since its start: 0 units reserved, reservations: 0; settled: 0 with the real cost, 0 without, 0 late")
}
