package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// tool runs a command of the command line against x's admin port, and returns its exit code and output.
func (x *started) tool(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out output
	code := run(t.Context(), append(args, "--admin-listen", x.admin), nil, &out, &out)
	return code, out.String()
}

// send asks /json of domain with one descriptor of the entries key=value, and returns the status.
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

// contains fails the test for each of wants that text lacks.
func contains(t *testing.T, what, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %q:\n%s", what, want, text)
		}
	}
}

// TestRequestsThatMeetNoLimitAreSeen: a typo in a domain or in a key allows everything, and is found by a command, the
// log and the metrics. Values are nowhere.
func TestRequestsThatMeetNoLimitAreSeen(t *testing.T) {
	x := startServe(t, "--config", write(t, counted))
	if code, out := x.tool(t, "top", "--unmatched"); code != exitDone || !strings.HasPrefix(out, "every request met a limit since ") {
		t.Errorf("before: exit %d: %s", code, out)
	}
	for i := range 3 {
		if code := x.send(t, "d", fmt.Sprintf("dany=secret%d", i)); code != 200 {
			t.Fatalf("a typo in a key: %d", code)
		}
	}
	if code := x.send(t, "c", "deny=secret"); code != 200 {
		t.Fatalf("a typo in a domain: %d", code)
	}
	if code := x.send(t, "d", "deny=1"); code != 200 {
		t.Fatalf("no typo: %d", code)
	}
	_, out := x.tool(t, "top", "--unmatched")
	contains(t, "top --unmatched", out, "at least 3  no limit matches  d       dany", "at least 1  no such domain    c       deny")
	_, top := x.tool(t, "top")
	contains(t, "top", top, "nobody was denied", "at least 4 requests met no limit", "top --unmatched")
	_, api := x.get(t, x.admin, "/api/unmatched")
	contains(t, "/api/unmatched", api, `"domain":"d","configured":true,"descriptors":["dany"]`, `"requests":3`)
	_, metrics := x.get(t, x.admin, "/metrics")
	contains(t, "/metrics", metrics, `rlsidecar_requests_unmatched_total{domain="d"} 3`, `rlsidecar_requests_unmatched_total{domain=""} 1`)
	contains(t, "the log", x.log.String(), `requests meet no limit and are allowed`, `"domain": "d", "descriptors": "dany"`)
	for where, text := range map[string]string{"top": out, "the API": api, "the log": x.log.String()} {
		if strings.Contains(text, "secret") {
			t.Errorf("%s shows a value:\n%s", where, text)
		}
	}
}

// TestAuthWithoutAnAuthSection denies, and says why at the first request.
func TestAuthWithoutAnAuthSection(t *testing.T) {
	x := startServe(t, "--config", write(t, counted))
	contains(t, "the log at the start", x.log.String(), "WARN", "no auth section: /v1/auth")
	if strings.Contains(x.log.String(), "ERROR") {
		t.Errorf("an error before the first request:\n%s", x.log)
	}
	for range 2 {
		if code, _ := x.get(t, x.http, "/v1/auth/nginx"); code != 403 {
			t.Errorf("%d, want 403", code)
		}
	}
	if n := strings.Count(x.log.String(), "a proxy calls /v1/auth, and the configuration has no auth section"); n != 1 {
		t.Errorf("the log says it %d times:\n%s", n, x.log)
	}
	_, out := x.get(t, x.admin, "/api/conditions")
	contains(t, "/api/conditions", out, "auth-not-configured", "every such request is denied")
	_, top := x.tool(t, "top")
	contains(t, "top", top, "2       no-auth")
}

const penalized = `domain: d
limits:
  send: {algorithm: token_bucket, rate: 1, period: 1m, capacity: 1, penalty: {after: 2, for: 5m, max: 1h}}
descriptors:
  - {key: user, limit: send}
`

// TestAPenaltyIsNamed: get and top say what denies a key, and until when, in memory and in Redis.
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
				t.Errorf("get: exit %d", code)
			}
			contains(t, "get", out, "the bucket of bob of limit send is blocked for 4m5", "until 20", "by its penalty")
			if !strings.Contains(out, "0          1   4m5") {
				t.Errorf("FULL IN is not the end of the block:\n%s", out)
			}
			_, api := x.get(t, x.admin, "/api/buckets?limit=send&key=bob")
			contains(t, "/api/buckets", api, `"blocked_by":"penalty"`, `"blocked_for_ms":29`)
			_, top := x.tool(t, "top")
			contains(t, "top", top, "penalty  d       send   user=bob", "limit    d       send   user=bob")
			if code, out := x.tool(t, "reset", "send", "bob"); code != exitDone {
				t.Errorf("reset: exit %d: %s", code, out)
			}
			if _, out := x.tool(t, "get", "send", "bob"); strings.Contains(out, "blocked") {
				t.Errorf("after the reset:\n%s", out)
			}
		})
	}
}

// TestABucketNeedsItsKey: without it get and reset say which one, and touch nothing.
func TestABucketNeedsItsKey(t *testing.T) {
	x := startServe(t, "--config", write(t, penalized))
	for _, verb := range []string{"get", "reset"} {
		code, out := x.tool(t, verb, "send")
		if code != exitUsage {
			t.Errorf("%s: exit %d", verb, code)
		}
		contains(t, verb, out, "the key has no value; a bucket of this limit is identified by 1 value (user)")
	}
}
