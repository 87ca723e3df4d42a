package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/canonical"
	"github.com/rlsidecar/rlsidecar/internal/testkit/sidecartest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

const root = "../.."

func TestMain(m *testing.M) { sidecartest.Main(m, root) }

// stack is an application behind a proxy, which calls rlsidecar. Configurations and ports are those of an example, but
// on a loopback address that no other test uses.
type stack struct {
	owner          *testing.T // the end of this test stops the processes
	addr           string
	port           string // the proxy's port for HTTP/1
	http2          string // the proxy's port for HTTP/2 without TLS; "" if it does not support it
	proxied        string // the proxy's port for HTTP/1 after a PROXY protocol header
	dir            string // has the configuration of the proxy
	limits         string // the configuration of the sidecar
	args           []string
	keys           bucket // the limit for each key; zero if there is none
	proxy, sidecar *process

	arrived atomic.Int64            // requests that reached the application
	last    atomic.Pointer[arrival] // the last of them
	mu      sync.Mutex
	counts  map[string]int // requests that reached the application, by the texts of countOf; guarded by mu
}

// arrival is a request that the application received.
type arrival struct {
	// keys has the values of all headers that an application might treat as X-Api-Key. CGI and its successors, such as
	// WSGI, do not distinguish "-" from "_". Some applications treat trailers as headers.
	keys []string
	body string
}

func newStack(t *testing.T, port, limits string, args ...string) *stack {
	t.Helper()
	s := &stack{
		owner: t, addr: loopback(), port: port, dir: t.TempDir(), limits: limits, args: args, keys: perKey,
		counts: map[string]int{},
	}
	return s
}

// change replaces a part of an example's configuration.
type change struct{ old, new string }

var stacks atomic.Int32

// loopback returns a loopback address between 127.100.0.1 and 127.227.255.255. No other test of this process
// uses it. The process id is a part of it, so that test processes at the same time use different addresses.
func loopback() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 100+pid>>8&0x7f, pid&0xff, stacks.Add(1))
}

func example(t *testing.T, name string, changes ...change) string {
	t.Helper()
	data := read(t, root+"/examples/"+name)
	return changed(t, name, data, changes...)
}

// changed returns text with changes. The test fails if the text, which is that of a file, lacks the text that a change
// replaces.
func changed(t *testing.T, name, text string, changes ...change) string {
	t.Helper()
	for _, c := range changes {
		if !strings.Contains(text, c.old) {
			t.Fatalf("%s no longer has %q", name, c.old)
		}
		text = strings.ReplaceAll(text, c.old, c.new)
	}
	return text
}

// write writes an example with changes into the folder of the stack.
func (s *stack) write(t *testing.T, name string, changes ...change) (path string) {
	t.Helper()
	return s.writeText(t, filepath.Base(name), example(t, name, changes...))
}

func (s *stack) writeText(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(s.dir, name)
	writeFile(t, path, strings.ReplaceAll(text, "127.0.0.1", s.addr))
	return path
}

// startSidecar starts the sidecar, or starts it again.
func (s *stack) startSidecar(t *testing.T) {
	t.Helper()
	s.sidecar = serve(s.owner, s.addr, append(slices.Clone(s.args), "--config", s.limits)...)
}

// run starts the proxy in the folder of its configuration.
func (s *stack) run(t *testing.T, program string, args ...string) {
	t.Helper()
	s.proxy = startIn(s.owner, s.dir, program, args...)
	awaitPort(t, s.proxy, s.addr+":"+s.port)
}

func (s *stack) runEnvoy(t *testing.T, config string) {
	t.Helper()
	s.proxy = startIn(s.owner, s.dir, tooltest.Path(t, "envoy"), "-c", config, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warn")
	eventually(t, "Envoy is ready", func() bool {
		if !s.proxy.running() {
			t.Fatalf("Envoy ended: %v", s.proxy.err)
		}
		_, ready := fetch("http://" + s.addr + ":9901/ready")
		return strings.HasPrefix(ready, "LIVE")
	})
}

func (s *stack) awaitSidecars(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("Envoy finds %d rlsidecar healthy", n), func() bool {
		return s.stat("cluster.rlsidecar.membership_healthy") == n
	})
}

// stat returns a counter or gauge of Envoy, or -1 if it does not exist.
func (s *stack) stat(name string) int {
	_, stats := fetch("http://" + s.addr + ":9901/stats?filter=" + name)
	for line := range strings.Lines(stats) {
		if value, ok := strings.CutPrefix(line, name+": "); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(value)); err == nil {
				return n
			}
		}
	}
	return -1
}

// serveApplication starts an application that answers 403 to /forbidden, 500 to /broken, and 200 to all other
// requests. Its answers contain no byte of the request.
func (s *stack) serveApplication(t *testing.T) {
	t.Helper()
	serveAt(t, s.addr+":9000", func(w http.ResponseWriter, r *http.Request) {
		s.receive(r)
		if code, ok := map[string]int{"/forbidden": http.StatusForbidden, "/broken": http.StatusInternalServerError}[r.URL.Path]; ok {
			w.WriteHeader(code)
		}
		_, _ = io.WriteString(w, "application")
	})
}

func serveAt(t *testing.T, address string, handler http.HandlerFunc) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := newApplication(address, handler)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close(); <-served })
}

// attackHeader names the attack that a request belongs to.
const attackHeader = "X-Attack"

func (s *stack) receive(r *http.Request) {
	body, _ := io.ReadAll(r.Body) // trailers follow the body; without a whole body there are none
	got := &arrival{body: string(body)}
	counts := []string{"tenant " + strings.TrimSpace(r.URL.Query().Get("tenant"))}
	if name := r.Header.Get(attackHeader); name != "" && sameApplicationPath(r.URL.Path) == "/login" {
		counts = append(counts, "login "+name)
	}
	for _, fields := range []http.Header{r.Header, r.Trailer} {
		for name, lines := range fields {
			if strings.EqualFold(strings.ReplaceAll(name, "_", "-"), "X-Api-Key") {
				got.keys = append(got.keys, lines...)
			}
		}
	}
	of := map[string]bool{}
	for _, key := range got.keys {
		of["key "+canonical.Trim(key)] = true
	}
	for text := range of {
		counts = append(counts, text)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range counts {
		s.counts[text]++
	}
	s.arrived.Add(1)
	s.last.Store(got)
}

// countOf returns how many requests reached the application with a key ("key KEY"), with a tenant ("tenant TENANT"), or
// with the path /login in an attack ("login NAME").
func (s *stack) countOf(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[what]
}

// sameApplicationPath returns the path that an application serves if it ignores case, trailing slashes and
// path parameters, and treats backslashes as slashes.
func sameApplicationPath(path string) string {
	return canonical.Fold(canonical.Path(path), canonical.IgnoreCase|canonical.IgnoreTrailingSlash|canonical.IgnoreParameters|canonical.IgnoreBackslash)
}

type answer struct {
	code   int
	header http.Header
	raw    string
}

// get sends GET path to the proxy with headers ("name: value"), byte for byte. from is the client's address; "" means
// any.
func (s *stack) get(t *testing.T, from, path string, headers ...string) answer {
	t.Helper()
	lines := append([]string{"GET " + path + " HTTP/1.1", "Host: shop.test", "Connection: close"}, headers...)
	return s.do(t, from, strings.Join(lines, "\r\n")+"\r\n\r\n")
}

func (s *stack) do(t *testing.T, from, request string) answer {
	t.Helper()
	a, err := s.try(t, from, s.port, request)
	if err != nil {
		t.Fatalf("%.100q: %v", request, err)
	}
	return a
}

// key returns a function that sends a request with a key.
func (s *stack) key(t *testing.T, value string) func() answer {
	t.Helper()
	return func() answer { t.Helper(); return s.get(t, "", "/", "X-Api-Key: "+value) }
}

// try sends a request to a port. It returns an error if the connection ends without a valid answer.
func (s *stack) try(t *testing.T, from, port, request string) (answer, error) {
	t.Helper()
	conn := dialFrom(t, from, net.JoinHostPort(s.addr, port))
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(maxWait))
	if _, err := io.WriteString(conn, request); err != nil {
		return answer{}, err
	}
	var raw bytes.Buffer
	resp, err := http.ReadResponse(bufio.NewReader(io.TeeReader(conn, &raw)), nil)
	if err != nil {
		return answer{}, fmt.Errorf("%w after %.200q", err, raw.String())
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body) // the status is enough; the rest of the answer may be missing
	return answer{resp.StatusCode, resp.Header, raw.String()}, nil
}

func dialFrom(t *testing.T, client, address string) net.Conn {
	t.Helper()
	var dialer net.Dialer
	if client != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(client)}
	}
	ctx, cancel := context.WithTimeout(t.Context(), maxWait)
	defer cancel()
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
