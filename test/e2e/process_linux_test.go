package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/sidecartest"
)

// maxWait bounds a wait for another process. It is long because CI machines are slow. A test that passes does
// not wait that long.
const maxWait = time.Minute

type process struct {
	cmd    *exec.Cmd
	output lockedBuffer
	exited chan struct{} // closed when the process has exited and err is set
	err    error
	killed bool // the test ended it, so its exit code does not matter
}

func start(t *testing.T, program string, args ...string) *process {
	t.Helper()
	return startIn(t, "", program, args...)
}

func startIn(t *testing.T, dir, program string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	return startCommand(t, cmd)
}

func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	program, args := cmd.Args[0], cmd.Args[1:]
	p := &process{cmd: cmd, exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	if p.cmd.SysProcAttr == nil {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	p.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL // the program also ends when go test is killed
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", program, err)
	}
	go func() { p.err = p.cmd.Wait(); close(p.exited) }()
	t.Cleanup(func() {
		if err := p.stop(); err != nil {
			t.Errorf("%s %s: %v", program, strings.Join(args, " "), err)
		}
		if t.Failed() {
			t.Logf("the last output of %s:\n%s", program, p.output.tail())
		}
	})
	return p
}

// stop sends SIGTERM, and waits for the end of the process. It returns an error if the sidecar did not exit
// with code 0. Other programs may also end by the signal. If the test killed the process, stop does nothing.
func (p *process) stop() error {
	if p.killed {
		return nil
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
		if p.cmd.Path != sidecartest.Program && p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGTERM {
			return nil // HAProxy ends by the signal, without an exit code
		}
		return p.err
	case <-time.After(maxWait):
		p.kill()
		return fmt.Errorf("the process still ran %v after SIGTERM and was killed", maxWait)
	}
}

func (p *process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func (p *process) kill() {
	p.killed = true
	_ = p.cmd.Process.Kill()
	<-p.exited
}

func (p *process) refuses(t *testing.T, code int, why string) {
	t.Helper()
	p.killed = true
	select {
	case <-p.exited:
	case <-time.After(maxWait):
		t.Fatal("the process runs, want that it ends with an error")
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code || !strings.Contains(p.output.tail(), why) {
		t.Errorf("got exit code %d and %s; want exit code %d and an output with %q", got, p.output.tail(), code, why)
	}
}

func (p *process) freeze(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	eventually(t, "each of its threads has stopped", func() bool {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		for _, stat := range stats {
			text, _ := os.ReadFile(stat)
			if state := bytes.LastIndexByte(text, ')') + 2; state >= len(text) || text[state] != 'T' {
				return false
			}
		}
		return err == nil && len(stats) > 0
	})
}

func (p *process) thaw(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGCONT)
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

var eventually = redistest.Eventually

// serve starts a sidecar on the ports 8080, 8081 and 6070 of addr, and waits until it is ready. args may choose other
// listeners. They may begin with variables, as NAME=VALUE.
func serve(t *testing.T, addr string, args ...string) *process {
	t.Helper()
	var variables []string
	for len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		variables, args = append(variables, args[0]), args[1:]
	}
	p := start(t, "env", append(append(variables,
		sidecartest.Program, "serve", "--grpc-listen", addr+":8081", "--http-listen", addr+":8080", "--admin-listen", addr+":6070", "--drain-delay", "0s",
	), args...)...)
	eventually(t, "rlsidecar is ready", func() bool {
		if !p.running() {
			t.Fatalf("rlsidecar ended: %v", p.err)
		}
		return strings.Contains(p.output.String(), "rlsidecar is ready")
	})
	return p
}

func awaitPort(t *testing.T, p *process, address string) {
	t.Helper()
	eventually(t, "it listens on "+address, func() bool {
		if !p.running() {
			t.Fatalf("%s ended: %v", p.cmd.Path, p.err)
		}
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

var fetching = &http.Client{Timeout: maxWait, Transport: &http.Transport{DisableKeepAlives: true}}

// fetch returns status 0 if there is no answer.
func fetch(url string) (code int, body string) {
	code, _, body = call(http.MethodGet, url, "")
	return code, body
}

// post sends a body in JSON. It returns status 0 if there is no answer.
func post(url, body string) (code int, answer string) {
	code, _, answer = call(http.MethodPost, url, body)
	return code, answer
}

// call sends a body in JSON with headers ("name: value"). It returns status 0 and the error if there is no answer.
func call(method, url, body string, headers ...string) (code int, header http.Header, answer string) {
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, err.Error()
	}
	request.Header.Set("Content-Type", "application/json")
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		request.Header.Set(name, value)
	}
	resp, err := fetching.Do(request)
	if err != nil {
		return 0, nil, err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(text)
}

// unitsLeft returns the units left in a bucket of the sidecar at addr, or -1 if it is not known.
func unitsLeft(addr, domain, limit string, key ...string) int {
	query := url.Values{"domain": {domain}, "key": key}
	_, body := fetch("http://" + addr + ":8080/v1/limits/" + limit + "?" + query.Encode())
	var bucket struct{ Remaining *int }
	if err := json.Unmarshal([]byte(body), &bucket); err != nil || bucket.Remaining == nil {
		return -1
	}
	return *bucket.Remaining
}

// awaitLeft waits until a bucket of the sidecar at addr has this number of units left.
func awaitLeft(t *testing.T, want int, addr, domain, limit string, key ...string) {
	t.Helper()
	last := want
	defer func() {
		if last != want {
			t.Logf("limit %s, key %q: %d units are left", limit, key, last)
		}
	}()
	eventually(t, fmt.Sprintf("limit %s, key %q: %d units are left", limit, key, want), func() bool {
		last = unitsLeft(addr, domain, limit, key...)
		return last == want
	})
}

// resident returns a number of KiB in the status of the process, such as VmHWM.
func (p *process) resident(t *testing.T, name string) (kib int) {
	t.Helper()
	_, rest, _ := strings.Cut(read(t, fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)), name+":")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

func dial(t *testing.T, target string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:"+target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// build builds a program of this module, and returns its path.
func build(t *testing.T, folder string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "program")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, root+"/"+folder).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// fileOf writes a file into a folder of its own, and returns its path.
func fileOf(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	writeFile(t, path, text)
	return path
}

// writeFile replaces a file, and creates its folder.
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// metric returns the sum of the series of the sidecar at addr whose text begins with prefix.
func metric(addr, prefix string) (sum float64) {
	for name, value := range sidecartest.Metrics(addr+":6070", "") {
		if strings.HasPrefix(name+" ", prefix) {
			sum += value
		}
	}
	return sum
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *lockedBuffer) tail() string {
	const enough = 4000
	all := b.String()
	return all[max(0, len(all)-enough):]
}
