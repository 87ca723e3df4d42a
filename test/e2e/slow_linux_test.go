package e2e

import (
	"os/exec"
	"strconv"
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
