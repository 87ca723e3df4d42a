package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/server"
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

func TestServeExitCodes(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	good, bad := write(t, limits), write(t, "domain: d\nnonsense: 1\n")
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"bad configuration":   {[]string{"--config", bad, "--grpc-listen", "127.0.0.1:0"}, exitNo, bad + ":2:1: "},
		"no configuration":    {nil, exitUsage, "--config PATH or --xds-server"},
		"two sources":         {[]string{"--config", good, "--xds-server", "x:1"}, exitUsage, "cannot be combined"},
		"TLS files alone":     {[]string{"--xds-server", "x:1", "--xds-tls-ca", "f"}, exitUsage, "--xds-tls"},
		"no such file":        {[]string{"--config", "/nowhere/at/all"}, exitFailed, "/nowhere/at/all"},
		"port taken":          {[]string{"--config", good, "--grpc-listen", taken.Addr().String()}, exitFailed, taken.Addr().String()},
		"no admin token":      {[]string{"--config", good, "--admin-listen", ":0"}, exitUsage, "token"},
		"no token file":       {[]string{"--config", good, "--api-token-file", "/nowhere/token"}, exitFailed, "/nowhere/token"},
		"an empty token file": {[]string{"--config", good, "--admin-token-file", write(t, " \n")}, exitFailed, "is empty"},
		"an empty file name":  {[]string{"--config", good, "--api-token-file="}, exitUsage, "the name of the token file is empty"},
		"no such level":       {[]string{"--config", good, "--log-level", "loud"}, exitUsage, "loud"},
	} {
		var stderr output
		if code := run(t.Context(), append([]string{"serve"}, c.args...), nil, io.Discard, &stderr); code != c.code || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s", name, code, c.code, c.want, stderr.String())
		}
	}
}

func TestNoCommandToTryWithoutJSON(t *testing.T) {
	s, problems := config.Compile([]config.File{{Name: "f", Data: []byte(limits)}}, config.Options{})
	if problems.Bad() {
		t.Fatal(problems)
	}
	at := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8080}
	for json, want := range map[bool]bool{true: true, false: false} {
		text := greeting(server.Running{GRPC: at, HTTP: at, Snapshot: s}, json)
		if strings.Contains(text, "curl") != want || !strings.Contains(text, "http://127.0.0.1:8080") {
			t.Errorf("json %t: want the address, and a curl command only with json:\n%s", json, text)
		}
	}
}

func TestServeReadsTheEnvironment(t *testing.T) {
	file := write(t, limits)
	for name, value := range map[string]string{
		"RLSIDECAR_CONFIG": file + "," + file, "RLSIDECAR_GRPC_LISTEN": "nonsense",
		"LIMIT_RESPONSE_HEADERS_ENABLED": "true", "RLSIDECAR_LIMIT_HEADER": "a b", "LIMIT_LIMIT_HEADER": "fine",
	} {
		t.Setenv(name, value)
	}
	var stderr output
	if code := run(t.Context(), []string{"serve"}, nil, io.Discard, &stderr); code != exitUsage || !strings.Contains(stderr.String(), `"a b"`) {
		t.Errorf("exit code %d, want %d:\n%s", code, exitUsage, stderr.String())
	}
	t.Setenv("RLSIDECAR_LIMIT_HEADER", "x")
	if code := run(t.Context(), []string{"serve"}, nil, io.Discard, &stderr); code != exitFailed || !strings.Contains(stderr.String(), "nonsense") {
		t.Errorf("exit code %d, want %d:\n%s", code, exitFailed, stderr.String())
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

func TestNoCommandToTryWithoutLimits(t *testing.T) {
	for _, text := range []string{"domain: d\n", "domain: d\ndescriptors: [{key: k}]\n"} {
		s, problems := config.Compile([]config.File{{Name: "f", Data: []byte(text)}}, config.Options{})
		if problems.Bad() {
			t.Fatal(problems)
		}
		if domain, entries, ok := example(s); ok {
			t.Errorf("got the example %s: %v; want none", domain, entries)
		}
	}
}

func TestVersion(t *testing.T) {
	var stdout output
	if code := run(t.Context(), []string{"--version"}, nil, &stdout, io.Discard); code != exitDone ||
		!regexp.MustCompile(`^rlsidecar \S+\ncommit .+\ngo\S+ \w+/\w+\n$`).MatchString(stdout.String()) {
		t.Errorf("exit code %d, want %d; the output is %q, want version, commit and Go version", code, exitDone, stdout.String())
	}
}
