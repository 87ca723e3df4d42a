package e2e

import (
	"bufio"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

func TestSlowClientsBlockNoOtherClient(t *testing.T) {
	t.Parallel()
	program := tooltest.Path(t, "slowhttptest")
	addr := loopback()
	s := serve(t, addr, "--config", root+"/examples/http-api/limits.yaml", "--admin-listen", "")
	before := s.resident(t, "VmHWM")
	var slow sync.WaitGroup
	for name, args := range map[string][]string{
		"headers": {"-H", "-u", "http://" + addr + ":8080/v1/limit"},
		"body":    {"-B", "-t", "POST", "-f", "application/json", "-s", "60000", "-u", "http://" + addr + ":8080/v1/limit"},
		"reading": {"-X", "-k", "3", "-w", "1", "-y", "8", "-n", "1", "-z", "4", "-u", "http://" + addr + ":8080/openapi.json"},
	} {
		slow.Go(func() {
			cmd := exec.Command(program, append(args, "-c", "300", "-r", "300", "-i", "1", "-l", "12", "-p", "5")...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
		})
	}
	done := make(chan struct{})
	go func() { defer close(done); slow.Wait() }()
	for request := 0; ; request++ {
		if code, _ := post("http://"+addr+":8080/v1/limit", `{"name":"bytes_sent","key":"`+strconv.Itoa(request)+`"}`); code != 200 {
			t.Errorf("another client: got %d; want status 200", code)
		}
		select {
		case <-done:
			if more := s.resident(t, "VmHWM") - before; more > 64<<10 {
				t.Errorf("900 slow clients used %d KiB of memory, want at most %d", more, 64<<10)
			}
			t.Logf("%d requests of another client were answered; the sidecar used %d KiB more", request+1, s.resident(t, "VmHWM")-before)
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestOversizedRequestsAreRefused(t *testing.T) {
	t.Parallel()
	addr := loopback()
	s := serve(t, addr, "--config", root+"/examples/http-api/limits.yaml", "--admin-listen", "")
	before := s.resident(t, "VmHWM")
	endless := "POST /v1/limit HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
	chunk := "1000\r\n" + strings.Repeat(" ", 4096) + "\r\n"
	for name, c := range map[string]struct {
		request string
		more    string // the test repeats this until the connection is closed, or 64 MiB are sent
		want    string
	}{
		"announced": {"POST /v1/limit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", "xxxxxxxxxxxxxxxx", "413"},
		"endless":   {endless, chunk, "413"},
		"deep":      {"POST /v1/limit HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 60000\r\n\r\n" + strings.Repeat("[", 60000), "", "400"},
		"header":    {"POST /v1/limit HTTP/1.1\r\nHost: localhost\r\nX-Big: ", strings.Repeat("y", 4096), "431"},
		"path":      {"GET /v1/limits/", strings.Repeat("z", 4096), "431"},
		"headers":   {"POST /v1/limit HTTP/1.1\r\nHost: localhost\r\n", strings.Repeat("X-A: b\r\n", 500), "431"},
		"line":      {"", strings.Repeat("G", 4096), "431"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", addr+":8080")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(maxWait))
			go func() {
				_, err := io.WriteString(conn, c.request)
				for sent := 0; err == nil && c.more != "" && sent < 64<<20; sent += len(c.more) {
					_, err = io.WriteString(conn, c.more)
				}
			}()
			status, err := bufio.NewReader(conn).ReadString('\n')
			if err != nil || !strings.HasPrefix(status, "HTTP/1.1 "+c.want) {
				t.Errorf("%q %v, want %s", status, err, c.want)
			}
		})
	}
	if code, _ := post("http://"+addr+":8080/v1/limit", `{"name":"bytes_sent"}`); code != 200 {
		t.Errorf("a small request afterwards: got %d; want status 200", code)
	}
	if more := s.resident(t, "VmHWM") - before; more > 64<<10 {
		t.Errorf("oversized requests used %d KiB of memory, want at most %d", more, 64<<10)
	}
}
