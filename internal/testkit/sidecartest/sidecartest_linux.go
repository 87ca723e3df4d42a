// Package sidecartest builds rlsidecar, and runs it on loopback for tests. It is for Linux, where a process can end
// with its parent.
package sidecartest

import (
	"bufio"
	"bytes"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// Program is the path of rlsidecar, which Main builds.
var Program string

// Main builds rlsidecar in the folder root of the module, runs the tests, and exits.
func Main(m *testing.M, root string) {
	folder, err := os.MkdirTemp("", "rlsidecar")
	if err != nil {
		log.Fatal(err)
	}
	Program = filepath.Join(folder, "rlsidecar")
	// -buildvcs=false, because git may refuse to work in a container. CGO_ENABLED=0, as in the image.
	build := exec.Command("go", "build", "-buildvcs=false", "-o", Program, "./cmd/rlsidecar")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		log.Fatalf("build rlsidecar: %v\n%s", err, out)
	}
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// Sidecar is a process of rlsidecar.
type Sidecar struct {
	GRPC, HTTP, Admin string // host:port of its listeners
	Cmd               *exec.Cmd
	args              []string
	output            bytes.Buffer
	tb                testing.TB
}

// Start starts a sidecar on free ports, with additional arguments. The end of the test kills it.
func Start(tb testing.TB, args ...string) *Sidecar {
	tb.Helper()
	address := func() string { return fmt.Sprint("127.0.0.1:", redistest.FreePort(tb)) }
	s := &Sidecar{GRPC: address(), HTTP: address(), Admin: address(), tb: tb}
	s.args = append([]string{
		"serve", "--grpc-listen", s.GRPC, "--http-listen", s.HTTP, "--admin-listen", s.Admin, "--drain-delay", "0s",
	}, args...)
	s.Restart()
	tb.Cleanup(func() {
		s.Kill()
		if text := s.output.String(); tb.Failed() {
			tb.Logf("the end of the log of %q: %s", args, text[max(0, len(text)-4000):])
		}
	})
	return s
}

// Restart starts a process that has ended again. It does not wait until the process answers; Await does.
func (s *Sidecar) Restart() {
	s.Cmd = exec.Command(Program, s.args...)
	s.Cmd.Stdout, s.Cmd.Stderr = &s.output, &s.output
	s.Cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it also ends when go test is killed
	if err := s.Cmd.Start(); err != nil {
		s.tb.Fatal(err)
	}
}

// Await waits until a path of the HTTP listener, such as /readyz, is answered with status 200. It returns s.
func (s *Sidecar) Await(path string) *Sidecar {
	s.tb.Helper()
	redistest.Eventually(s.tb, "the sidecar answers "+path, func() bool {
		response, err := http.Get("http://" + s.HTTP + path)
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return s
}

// Metrics returns the values of a sidecar's series, by name and labels, or none if it does not answer. admin is the
// host:port of its admin listener, and token that of the listener, or "".
func Metrics(admin, token string) map[string]float64 {
	all := map[string]float64{}
	request := &http.Request{URL: &url.URL{Scheme: "http", Host: admin, Path: "/metrics"}, Header: http.Header{}}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := (&http.Client{Timeout: time.Minute}).Do(request)
	if err != nil {
		return all
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if value, err := strconv.ParseFloat(line[at+1:], 64); err == nil {
			all[line[:at]] = value
		}
	}
	return all
}

// Kill ends the process at once, as a crash does.
func (s *Sidecar) Kill() {
	_ = s.Cmd.Process.Kill()
	_ = s.Cmd.Wait()
}

// Stop ends the process as Kubernetes does. Its exit code must be 0.
func (s *Sidecar) Stop() {
	_ = s.Cmd.Process.Signal(syscall.SIGTERM)
	if err := s.Cmd.Wait(); err != nil {
		s.tb.Errorf("a sidecar ended with %v", err)
	}
}
