package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

const root = "../.."

var sidecarProgram string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "rlsidecar-e2e")
	if err != nil {
		log.Fatal(err)
	}
	sidecarProgram = filepath.Join(dir, "rlsidecar")
	// -buildvcs=false, because git may refuse to work in a container. CGO_ENABLED=0, as in the image.
	build := exec.Command("go", "build", "-buildvcs=false", "-o", sidecarProgram, root+"/cmd/rlsidecar")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		log.Fatalf("build rlsidecar: %v\n%s", err, out)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// stack is an application behind Envoy, which calls rlsidecar. Configurations and ports are those of
// examples/envoy, but on a loopback address that no other test uses.
type stack struct {
	owner   *testing.T // the end of this test stops the processes
	addr    string
	envoy   *process
	sidecar *process
	socket  string // path of the sidecar's Unix socket; empty means TCP
	client  *http.Client
	last    atomic.Pointer[received] // the last request that the application received
	counts  counts
}

// change replaces a part of an example's configuration.
type change struct{ old, new string }

// These are changes to examples/envoy/envoy.yaml. startEnvoy always makes longTimeout, because 50 ms may be too
// short on a busy machine.
var (
	longTimeout = change{"timeout: 0.05s", "timeout: 10s"}
	failOpen    = change{"failure_mode_deny: true", "failure_mode_deny: false"}
)

func overSocket(path string) change {
	return change{
		"{ socket_address: { address: 127.0.0.1, port_value: 8081 } }",
		"{ pipe: { path: " + path + " } }",
	}
}

var stacks atomic.Int32

// loopback returns a loopback address between 127.100.0.1 and 127.227.255.255. No other test of this process
// uses it. The process id is a part of it, so that test processes at the same time use different addresses.
func loopback() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 100+pid>>8&0x7f, pid&0xff, stacks.Add(1))
}

func newStack(t *testing.T, socket string, changes ...change) *stack {
	t.Helper()
	tooltest.Path(t, "envoy") // skips the test if Envoy is missing
	s := sidecarStack(t, socket)
	s.serveApplication(t)
	s.startSidecar(t)
	s.startEnvoy(t, changes...)
	s.awaitSidecar(t)
	return s
}

// sidecarStack returns a stack without running processes.
func sidecarStack(t *testing.T, socket string) *stack {
	t.Helper()
	s := &stack{
		owner:  t,
		addr:   loopback(),
		socket: socket,
		client: &http.Client{Timeout: maxWait, Transport: &http.Transport{}},
	}
	t.Cleanup(s.client.CloseIdleConnections)
	return s
}

func (s *stack) startEnvoy(t *testing.T, changes ...change) {
	t.Helper()
	s.runEnvoy(t, s.envoyFile(t, "envoy/envoy.yaml", append([]change{longTimeout}, changes...)...))
}

func (s *stack) envoyFile(t *testing.T, name string, changes ...change) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "envoy.yaml")
	text := example(t, name, append(changes, change{"127.0.0.1", s.addr})...)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (s *stack) runEnvoy(t *testing.T, config string) {
	t.Helper()
	s.envoy = start(s.owner, tooltest.Path(t, "envoy"), "-c", config, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warn")
	eventually(t, "Envoy is ready", func() bool {
		if !s.envoy.running() {
			t.Fatalf("Envoy ended: %v", s.envoy.err)
		}
		return strings.HasPrefix(s.admin("/ready"), "LIVE")
	})
}

// The test fails if the file lacks the text that a change replaces.
func example(t *testing.T, name string, changes ...change) string {
	t.Helper()
	data, err := os.ReadFile(root + "/examples/" + name)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, c := range changes {
		if !strings.Contains(text, c.old) {
			t.Fatalf("examples/%s no longer has %q", name, c.old)
		}
		text = strings.ReplaceAll(text, c.old, c.new)
	}
	return text
}

func (s *stack) startSidecar(t *testing.T) {
	t.Helper()
	network, address, flag := "tcp", s.addr+":8081", s.addr+":8081"
	if s.socket != "" {
		network, address, flag = "unix", s.socket, "unix://"+s.socket
	}
	s.sidecar = start(s.owner, sidecarProgram, "serve", "--config", root+"/examples/envoy/rlsidecar.yaml",
		"--grpc-listen", flag, "--http-listen", s.addr+":8080", "--admin-listen", s.addr+":6070", "--drain-delay", "0s")
	awaitPort(t, s.sidecar, network, address)
}

func (s *stack) awaitSidecar(t *testing.T) {
	t.Helper()
	s.awaitSidecars(t, 1)
}

func (s *stack) awaitSidecars(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("Envoy finds %d rlsidecar healthy", n), func() bool {
		return s.stat("cluster.rlsidecar.membership_healthy") == n
	})
}

// The answers of the application contain no byte of the request.
func (s *stack) serveApplication(t *testing.T) {
	t.Helper()
	serveAt(t, s.addr+":9000", func(w http.ResponseWriter, r *http.Request) {
		s.receive(r)
		_, _ = io.WriteString(w, "application")
	})
}

func serveAt(t *testing.T, address string, handler http.HandlerFunc) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := newApplication(handler)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close(); <-served })
}

// admin returns "" if there is no answer.
func (s *stack) admin(path string) string {
	resp, err := s.client.Get("http://" + s.addr + ":9901" + path)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return string(body)
}

// stat returns -1 if the counter or gauge does not exist.
func (s *stack) stat(name string) int {
	for line := range strings.Lines(s.admin("/stats?filter=" + name)) {
		if value, ok := strings.CutPrefix(line, name+": "); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(value)); err == nil {
				return n
			}
		}
	}
	return -1
}

type answer struct {
	code   int
	header http.Header
	raw    string
}

// get sends GET path to Envoy's port 10000, with headers ("name: value"), byte for byte. from is the client's
// address; "" means any.
func (s *stack) get(t *testing.T, from, path string, headers ...string) answer {
	t.Helper()
	raw, err := s.exchange(t, from, "10000", path, headers...)
	if err != nil {
		t.Fatalf("GET %.100q: %v", path, err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
	if err != nil {
		t.Fatalf("GET %.100q: %v in %.200q", path, err, raw)
	}
	_ = resp.Body.Close()
	return answer{resp.StatusCode, resp.Header, string(raw)}
}

// exchange opens a connection to a port of Envoy, sends GET path and returns all bytes until the connection ends. The
// other parameters are those of get.
func (s *stack) exchange(t *testing.T, from, port, path string, headers ...string) ([]byte, error) {
	t.Helper()
	var dialer net.Dialer
	if from != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	ctx, cancel := context.WithTimeout(t.Context(), maxWait)
	defer cancel()
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(s.addr, port))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(maxWait))
	lines := append([]string{"GET " + path + " HTTP/1.1", "host: shop.test", "connection: close"}, headers...)
	if _, err := io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n\r\n"); err != nil {
		return nil, err
	}
	return io.ReadAll(conn)
}
