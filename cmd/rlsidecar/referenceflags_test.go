package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/rlsidecar/rlsidecar/internal/reference/refenv"
)

func await(t *testing.T, out *output, pattern string) []string {
	t.Helper()
	p := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if found := p.FindStringSubmatch(out.String()); found != nil {
			return found
		}
	}
	t.Fatalf("the output does not match %s:\n%s", pattern, out.String())
	return nil
}

func limited(t *testing.T, url, domain string) bool {
	t.Helper()
	r, err := http.Post(url+"/json", "", strings.NewReader(`{"domain": "`+domain+`", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("got %d %s, %v; want status 200", r.StatusCode, body, err)
	}
	return strings.Contains(string(body), "currentLimit")
}

// TestStartsAsTheReferenceServer starts the program under the reference server's path, with its environment and
// files. The files are behind a symbolic link that is replaced, as in a ConfigMap.
func TestStartsAsTheReferenceServer(t *testing.T) {
	root := t.TempDir()
	for _, version := range []string{"v1", "v2"} {
		folder := filepath.Join(root, version, "ratelimit", "config")
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		text := "domain: " + version + "\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 9}}]\n"
		if err := os.WriteFile(filepath.Join(folder, "limits"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	current := filepath.Join(root, "current")
	if err := os.Symlink("v1", current); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"RUNTIME_ROOT": current, "RUNTIME_SUBDIRECTORY": "ratelimit", "HOST": "127.0.0.1", "PORT": "0", "GRPC_UDS": filepath.Join(root, "grpc"),
		"DEBUG_PORT": "0", "USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": "127.0.0.1:0", "LOG_LEVEL": "INFO",
		"RLSIDECAR_DRAIN_DELAY": "1ms", "RLSIDECAR_LOG_FORMAT": "", "SHADOW_MODE": "",
	} {
		t.Setenv(name, value)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var stderr output
	code := make(chan int)
	go func() { code <- runAs(ctx, []string{"/bin/ratelimit"}, nil, io.Discard, &stderr) }()
	url := await(t, &stderr, `HTTP +(http://\S+)`)[1]
	if !limited(t, url, "v1") || limited(t, url, "v2") {
		t.Error("the configuration is not in use; want a limit in domain v1 and none in domain v2")
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(url, "http://"), ":")
	t.Setenv("PORT", port)
	healthcheck := func(args ...string) int {
		return runAs(t.Context(), append([]string{"/bin/ratelimit", "healthcheck"}, args...), nil, io.Discard, &stderr)
	}
	if http, grpc := healthcheck(), healthcheck("--http-listen", ""); http != exitDone || grpc != exitDone {
		t.Errorf("healthcheck: exit codes %d over HTTP and %d over gRPC, want %d: %s", http, grpc, exitDone, stderr.String())
	}
	r, err := http.Get("http://" + await(t, &stderr, `"metrics": "([^"]+)"`)[1] + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(r.Body)
	r.Body.Close()
	if !strings.Contains(string(body), `ratelimit_service_rate_limit_total_hits{domain="v1",key1="k",key2=""} 1`) {
		t.Errorf("got %s; want the counter total_hits of key1 \"k\" at 1", body)
	}
	if err := os.Symlink("v2", current+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(current+".new", current); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); !limited(t, url, "v2"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("serve did not load the files behind the replaced link:\n%s", stderr.String())
		}
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if got := <-code; got != exitDone {
		t.Errorf("exit code %d, want %d:\n%s", got, exitDone, stderr.String())
	}
}

func TestReferenceFlagsExist(t *testing.T) {
	parser, err := kong.New(&commands{}, kong.Name("x"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"": true}
	for _, flag := range parser.Model.Children[0].Flags { // serve
		known[flag.Name] = true
	}
	for _, v := range refenv.Variables() {
		if !known[v.Sets] {
			t.Errorf("%s sets %s, which serve does not have", v.Name, v.Sets)
		}
	}
	settings, err := refenv.Read(map[string]string{
		"USE_PROMETHEUS": "true", "REDIS_URL": "h:1", "REDIS_TLS": "true", "REDIS_TLS_CACERT": "a", "REDIS_TLS_CLIENT_CERT": "c",
		"REDIS_TLS_CLIENT_KEY": "k", "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION": "true", "CACHE_KEY_PREFIX": "p", "GRPC_SERVER_USE_TLS": "true",
		"GRPC_SERVER_TLS_CERT": "c", "GRPC_SERVER_TLS_KEY": "k", "GRPC_CLIENT_TLS_CACERT": "a", "GRPC_CLIENT_TLS_SAN": "n",
		"REDIS_PERSECOND": "true", "USE_DOG_STATSD": "true", "EXTRA_TAGS": "a:b", "TRACING_ENABLED": "true",
		"TRACING_SERVICE_NAMESPACE": "n", "TRACING_SERVICE_INSTANCE_ID": "i",
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	for name := range settings.Values {
		if !known[name] {
			t.Errorf("serve has no --%s", name)
		}
	}
}
