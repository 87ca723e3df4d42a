package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/certtest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

const counted = `domain: d
descriptors:
  - {key: deny, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: allow, rate_limit: {unit: year, requests_per_unit: 5, on_backend_failure: allow}}
`

// started is a sidecar that runs in this process. log has its stderr. stop ends it and returns its exit code.
type started struct {
	log               *output
	http, admin, grpc string // host:port
	stop              func() int
}

// startServe runs serve with args until the test ends. It returns once the listeners have their addresses.
func startServe(t *testing.T, args ...string) *started {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	x := &started{log: &output{}}
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, append([]string{
			"serve", "--drain-delay", "0s", "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		}, args...), nil, io.Discard, x.log)
	}()
	x.stop = func() int {
		cancel()
		got := <-code
		code <- got
		return got
	}
	t.Cleanup(func() { x.stop() })
	at := regexp.MustCompile(`"grpc": "([^"]+)", "http": "([^"]+)", "admin": "([^"]+)"`)
	redistest.Eventually(t, "it listens", func() bool {
		select {
		case got := <-code:
			code <- got
			t.Fatalf("serve ended with exit code %d; want it to listen:\n%s", got, x.log)
		default:
		}
		if found := at.FindStringSubmatch(x.log.String()); found != nil {
			x.grpc, x.http, x.admin = found[1], found[2], found[3]
		}
		return x.http != "" && strings.Contains(x.log.String(), "rlsidecar is ")
	})
	return x
}

func (x *started) get(t *testing.T, addr, path string) (int, string) {
	t.Helper()
	return fetch(t, http.MethodGet, "http://"+addr+path, "")
}

// decide posts a descriptor with this key and the value 1 to /json, and returns the status.
func (x *started) decide(t *testing.T, key string) int {
	t.Helper()
	code, _ := fetch(t, http.MethodPost, "http://"+x.http+"/json", fmt.Sprintf(`{"domain":"d","descriptors":[{"entries":[{"key":%q,"value":"1"}]}]}`, key))
	return code
}

func fetch(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// TestRefusalsOfRedisKeepReadinessFalse starts sidecars with wrong settings. They run, decide by
// on_backend_failure, and show the mistake and its remedy in /readyz, in the log and in /api/conditions.
func TestRefusalsOfRedisKeepReadinessFalse(t *testing.T) {
	ca, dir := certtest.New(t), t.TempDir()
	ca.Secret(t, dir, 2, "redis")
	file := func(name string) string { return filepath.Join(dir, name) }
	tlsPort := redistest.FreePort(t)
	redis := redistest.Start(t, "--tls-port", fmt.Sprint(tlsPort), "--tls-auth-clients", "no",
		"--tls-ca-cert-file", file("ca.crt"), "--tls-cert-file", file("tls.crt"), "--tls-key-file", file("tls.key"))
	redis.Do("ACL", "SETUSER", "one", "on", ">right", "~rl:*", "+@all")
	for name, c := range map[string]struct {
		url, cause, remedy string
	}{
		"a wrong password":        {"redis://one:wrong@" + redis.Addr, "refuses the user or the password", "--redis-password-file"},
		"TLS to a plaintext port": {"rediss://" + redis.Addr, "does not use TLS at this port", "redis:// instead of rediss://"},
		"plaintext to a TLS port": {fmt.Sprintf("redis://127.0.0.1:%d", tlsPort), "requires TLS at this port", "rediss:// instead of redis://"},
		"a cluster URL":           {"redis+cluster://" + redis.Addr, "is a single server", "redis://host:port"},
		"a Sentinel URL":          {"redis+sentinel://" + redis.Addr + "/main", "may be a Sentinel, or another kind", "redis://host:port"},
	} {
		t.Run(name, func(t *testing.T) {
			x := startServe(t, "--config", write(t, counted), "--redis-url", c.url)
			if log := x.log.String(); strings.Contains(log, "rlsidecar is ready") {
				t.Errorf("the log reports that the sidecar is ready; want no such line:\n%s", log)
			}
			for where, read := range map[string]func() (int, string){
				"/readyz":         func() (int, string) { return x.get(t, x.http, "/readyz") },
				"/api/conditions": func() (int, string) { return x.get(t, x.admin, "/api/conditions") },
				"the log":         func() (int, string) { return 0, x.log.String() },
			} {
				// A busy machine may need several attempts to detect the mistake.
				redistest.Eventually(t, where+" states the mistake and the remedy", func() bool {
					code, text := read()
					if where == "/readyz" && code != http.StatusServiceUnavailable {
						t.Fatalf("/readyz: status %d, want 503", code)
					}
					return strings.Contains(text, c.cause) && strings.Contains(text, c.remedy)
				})
				if _, text := read(); strings.Contains(text, "wrong@") || strings.Contains(text, ":wrong") {
					t.Errorf("%s shows the password; want it masked:\n%s", where, text)
				}
			}
			if deny, allow := x.decide(t, "deny"), x.decide(t, "allow"); deny != 429 || allow != 200 {
				t.Errorf("deny: %d, allow: %d; want 429 and 200", deny, allow)
			}
			if code, _ := x.get(t, x.http, "/livez"); code != http.StatusOK {
				t.Errorf("/livez: status %d, want 200", code)
			}
			var out output
			if code := run(t.Context(), []string{"healthcheck", "--http-listen", x.http}, nil, &out, &out); code != exitNo || !strings.Contains(out.String(), c.cause) {
				t.Errorf("healthcheck: exit code %d, want %d: %s", code, exitNo, out.String())
			}
			out = output{}
			if code := run(t.Context(), []string{"healthcheck", "--http-listen", "", "--grpc-listen", x.grpc}, nil, &out, &out); code != exitNo {
				t.Errorf("healthcheck over gRPC: exit code %d, want %d: %s", code, exitNo, out.String())
			}
			if code := x.stop(); code != exitDone {
				t.Errorf("exit code %d, want %d", code, exitDone)
			}
		})
	}
}

// Once Redis has decided, neither a refusal nor an outage makes the sidecar unready.
func TestReadinessDependsOnRedisUntilItHasDecidedOnce(t *testing.T) {
	redis := redistest.Start(t)
	redis.Do("ACL", "SETUSER", "one", "on", ">right", "~rl:*", "+@all")
	password := write(t, "one:wrong")
	x := startServe(t, "--config", write(t, counted), "--redis-url", "redis://"+redis.Addr, "--redis-password-file", password)
	ready := func() int { code, _ := x.get(t, x.http, "/readyz"); return code }
	if code := ready(); code != 503 {
		t.Fatalf("with a wrong password: status %d, want 503", code)
	}
	redis.Kill()
	redistest.Eventually(t, "the log states that Redis does not answer", func() bool {
		return strings.Contains(x.log.String(), "redis does not answer")
	})
	if code := ready(); code != 503 {
		t.Errorf("refused, then unreachable: status %d, want 503", code)
	}
	redis.Restart()
	redis.Wait()
	redis.Do("ACL", "SETUSER", "one", "on", ">right", "~rl:*", "+@all")
	if err := os.WriteFile(password, []byte("one:right"), 0o600); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, "it is ready after the password is corrected", func() bool { return ready() == 200 })
	redistest.Eventually(t, "Redis allows a request", func() bool { return x.decide(t, "deny") == 200 })
	redistest.Eventually(t, "Redis answers and does not refuse", func() bool {
		_, text := x.get(t, x.admin, "/api/conditions") // a busy machine may also report that Redis is slow
		return !strings.Contains(text, "redis-refuses/") && !strings.Contains(text, "redis-away/") && !strings.Contains(text, "redis-breaker-open/")
	})
	redis.Do("ACL", "SETUSER", "one", "resetpass", ">other")
	redis.Do("CLIENT", "KILL", "TYPE", "normal")
	redistest.Eventually(t, "a request is denied after the password has changed again", func() bool { return x.decide(t, "deny") == 429 })
	redis.Kill()
	x.decide(t, "deny")
	if code := ready(); code != 200 {
		t.Errorf("Redis has decided once and then fails: status %d, want 200", code)
	}
}

func TestAnUnreachableRedisDoesNotPreventReadiness(t *testing.T) {
	redis := redistest.Start(t)
	redis.Kill()
	x := startServe(t, "--config", write(t, counted), "--redis-url", "redis://"+redis.Addr)
	if code, why := x.get(t, x.http, "/readyz"); code != 200 {
		t.Errorf("/readyz: got %d %s; want status 200", code, why)
	}
	if _, text := x.get(t, x.admin, "/api/conditions"); !strings.Contains(text, `"redis-away/`+redis.Addr) {
		t.Errorf("got %s; want the condition redis-away", text)
	}
	redis.Restart()
	redistest.Eventually(t, "it decides", func() bool { return x.decide(t, "deny") == 200 })
	redistest.Eventually(t, "Redis answers and does not refuse", func() bool {
		_, text := x.get(t, x.admin, "/api/conditions") // a busy machine may also report that Redis is slow
		return !strings.Contains(text, "redis-refuses/") && !strings.Contains(text, "redis-away/") && !strings.Contains(text, "redis-breaker-open/")
	})
}
