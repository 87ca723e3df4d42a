package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

// longNginx are changes to the timeouts of examples/nginx/nginx.conf.
var longNginx = []change{{"_timeout 50ms", "_timeout 10s"}, {"_timeout    50ms", "_timeout 10s"}, {"proxy_read_timeout    100ms", "proxy_read_timeout 10s"}}

func startNginx(t *testing.T, v variant, more ...change) *stack {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	var args []string
	if v == open {
		args = []string{"--http-listen", "unix://" + socket}
	}
	s := startExample(t, "8000", "nginx/rlsidecar.yaml", args...)
	s.http2, s.proxied = "8002", "8001"
	s.runNginx(t, append(more, changesOf(v, longNginx,
		[]change{{"listen 127.0.0.1:8000;", "listen 127.0.0.1:8000; listen 127.0.0.1:8001 proxy_protocol; listen 127.0.0.1:8002 http2; set_real_ip_from 127.0.0.0/8; real_ip_header proxy_protocol;"}},
		[]change{
			{"listen 127.0.0.1:8000;", "listen 127.0.0.1:8000; listen 127.0.0.1:8002 http2;"}, {"error_page 500 = @rl_closed;", "error_page 500 = @rl_open;"},
			{"access_log access.log limited;", "access_log access.log limited; large_client_header_buffers 4 32k;"},
			{"server 127.0.0.1:9000;", "server 127.0.0.1:" + lenientPort + ";"}, {"server 127.0.0.1:8080 max_fails=0;", "server unix:" + socket + " max_fails=0;"},
		})...)...)
	return s
}

func (s *stack) runNginx(t *testing.T, changes ...change) {
	t.Helper()
	program := tooltest.Path(t, "nginx")
	// The default user "nobody" cannot read the files of a test that runs as root.
	s.write(t, "nginx/nginx.conf", append(changes, change{"worker_processes auto;", "worker_processes 1;" + userDirective()})...)
	for _, name := range []string{"tmp", "html/static/folder"} {
		if err := os.MkdirAll(filepath.Join(s.dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.writeText(t, "html/static/a.txt", "a file")
	s.writeText(t, "html/static/folder/index.html", "an index")
	s.run(t, program, "-p", s.dir, "-e", "stderr", "-c", "nginx.conf")
}

func userDirective() string {
	if os.Getuid() == 0 {
		return " user root;"
	}
	return ""
}

func redirectsChargeOnce(t *testing.T, s *stack) {
	for path, want := range map[string]struct {
		code int
		body string
	}{"/static/a.txt": {200, "a file"}, "/static/folder": {200, "an index"}, "/static/none": {404, ""}, "/static/": {404, ""}} {
		before := s.decisions("address", "allowed")
		if a := s.get(t, "", path); a.code != want.code || !strings.HasSuffix(a.raw, want.body) {
			t.Errorf("%s: got %d %q; want %d and a body that ends with %q", path, a.code, a.raw, want.code, want.body)
		}
		if n := s.decisions("address", "allowed") - before; n != 1 {
			t.Errorf("%s: %d requests reached rlsidecar, want 1", path, n)
		}
	}
}

func TestNginxRemembersDenials(t *testing.T) {
	t.Parallel()
	s := startNginx(t, closed, change{"#proxy_cache_path ", "proxy_cache_path "}, change{"#proxy_cache denials;", "proxy_cache denials;"}, change{"#proxy_cache_key ", "proxy_cache_key "})
	perKey.drain(t, s.key(t, "alice"))
	eventually(t, "most of ten denials are remembered", func() bool {
		before := s.decisions("per_key", "denied")
		for range 10 {
			if a := s.key(t, "alice")(); a.code != 429 || a.header.Get("Retry-After") == "" {
				t.Fatalf("got %d %v; want status 429 and Retry-After", a.code, a.header)
			}
		}
		return before > 0 && s.decisions("per_key", "denied")-before <= 5
	})
	perKey.drain(t, s.key(t, "bob")) // NGINX must not cache allowed requests.
	eventually(t, "the access log names the limit, also for a remembered denial", func() bool {
		log := read(t, filepath.Join(s.dir, "access.log"))
		return strings.Contains(log, "rl=403,limit,per_key\n") && strings.Contains(log, "rl=,limit,per_key\n") && strings.Contains(log, "rl=200,,\n")
	})
}

func TestNginxKeepsItsConnection(t *testing.T) {
	t.Parallel()
	s := startNginx(t, closed)
	post := "POST /form HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Api-Key: poster\r\nContent-Length: 3\r\n\r\na=b"
	for range 50 {
		for what, send := range map[string]func(){"GET": func() { s.key(t, "alice")() }, "POST": func() { s.do(t, "", post) }} {
			send()
			if n := metric(s.addr, `rlsidecar_connections{listener="http"} `); n != 1 { // NGINX has one worker process
				t.Fatalf("after %s, %v connections are open, want 1", what, n)
			}
		}
	}
}
