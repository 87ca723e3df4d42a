package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/server"
	"github.com/rlsidecar/rlsidecar/internal/testkit/configtest"
)

// output is a buffer that is safe for concurrent use.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

const limits = `domain: it's
descriptors:
  - {key: free}
  - {key: user, value: "x*z", descriptors: [{key: path, value: /a, rate_limit: {unit: year, requests_per_unit: 5}}]}
`

func write(t *testing.T, text string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestServePrintsACommandToTry(t *testing.T) {
	x := startServe(t, "--config", write(t, limits))
	command := regexp.MustCompile(`curl -s (http://[^ ]+) -d '(.*)'\n`)
	found := command.FindStringSubmatch(x.log.String())
	if found == nil {
		t.Fatalf("want a curl command in:\n%s", x.log)
	}
	code, body := fetch(t, http.MethodPost, found[1], strings.ReplaceAll(found[2], `'\''`, "'"))
	var answer struct {
		Statuses []struct{ LimitRemaining int }
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || len(answer.Statuses) != 1 || answer.Statuses[0].LimitRemaining != 4 {
		t.Errorf("got %d %s, %v; want one status with 4 remaining", code, body, err)
	}
	if got := x.stop(); got != exitDone {
		t.Errorf("exit code %d, want %d:\n%s", got, exitDone, x.log)
	}
}

func TestACommandToTryNeedsJSONAndALimit(t *testing.T) {
	at := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8080}
	for _, c := range []struct {
		text       string
		json, want bool
	}{{limits, true, true}, {limits, false, false}, {"domain: d\n", true, false}, {"domain: d\ndescriptors: [{key: k}]\n", true, false}} {
		s := configtest.Compile(t, c.text)
		text := greeting(server.Running{GRPC: at, HTTP: at, Snapshot: s}, c.json)
		if strings.Contains(text, "curl") != c.want || !strings.Contains(text, "http://127.0.0.1:8080") {
			t.Errorf("json %t: want the address, and a curl command: %t\n%s", c.json, c.want, text)
		}
	}
}

func TestCurlCommandFitsEveryAddress(t *testing.T) {
	for want, a := range map[string]net.Addr{
		"curl -s http://127.0.0.1:80/json":                              &net.TCPAddr{IP: net.IPv6zero, Port: 80},
		"curl -s http://[::1]:80/json":                                  &net.TCPAddr{IP: net.IPv6loopback, Port: 80},
		"curl -s --unix-socket '/a b' http://localhost/json":            &net.UnixAddr{Name: "/a b", Net: "unix"},
		`curl -s --abstract-unix-socket 'a'\''b' http://localhost/json`: &net.UnixAddr{Name: "@a'b", Net: "unix"},
	} {
		if got := curl(a); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestAuthWithoutAnAuthSection(t *testing.T) {
	x := startServe(t, "--config", write(t, counted))
	if log := x.log.String(); !strings.Contains(log, "no auth section: /v1/auth") || strings.Contains(log, "ERROR") {
		t.Errorf("before the first request, want a warning and no ERROR in the log:\n%s", log)
	}
	for range 2 {
		if code, _ := x.get(t, x.http, "/v1/auth/nginx"); code != 403 {
			t.Errorf("/v1/auth/nginx: status %d, want 403", code)
		}
	}
	if n := strings.Count(x.log.String(), "a proxy calls /v1/auth, and the configuration has no auth section"); n != 1 {
		t.Errorf("the log has the reason %d times, want 1:\n%s", n, x.log)
	}
	for path, want := range map[string]string{"/api/conditions": "auth-not-configured", "/api/top": "no-auth"} {
		if _, text := x.get(t, x.admin, path); !strings.Contains(text, want) {
			t.Errorf("%s lacks %q:\n%s", path, want, text)
		}
	}
}
