package nonblock

import (
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// There is one processor. A second connection must read its byte before the first one has read more than three times
// share bytes. The test counts bytes, not time.
func TestAConnectionThatAlwaysHasDataTakesTurns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	plain, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	l := Listener(plain)
	for range 20 {
		full, from := connect(t, l)
		other, otherPeer := connect(t, l)
		_ = from.(*net.UnixConn).SetWriteBuffer(1 << 20)
		have := fill(t, Wrap(from))
		if have < 4*share {
			t.Fatalf("the kernel buffers only %d bytes", have)
		}
		var read atomic.Int64
		at := make(chan int64, 1)
		go func() {
			_, _ = other.Read(make([]byte, 1))
			at <- read.Load()
		}()
		time.Sleep(time.Millisecond) // by then the goroutine probably waits in Read, but the test does not depend on that
		_, _ = Wrap(otherPeer).WriteOnce([]byte("x"))
		for b := make([]byte, 1<<10); have > 0; {
			n, err := full.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			have -= n
			read.Add(int64(n))
		}
		if n := <-at; n > 3*share {
			t.Errorf("the second connection waited until the first had read %d bytes; want at most %d", n, 3*share)
		}
	}
}

func fill(t *testing.T, c *Conn) (sum int) {
	t.Helper()
	for b := make([]byte, 4<<10); ; {
		n, err := c.WriteOnce(b)
		if err != nil {
			t.Fatal(err)
		}
		if sum += n; n == 0 {
			return sum
		}
	}
}

func TestEveryConnectionGetsATurn(t *testing.T) {
	var yields yielder
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			wake := make(chan struct{}, 1)
			for range 200 {
				yields.pass(wake)
			}
		})
	}
	all.Wait()
	if yields.busy || len(yields.waiting) > 0 {
		t.Errorf("got %+v; want idle, with no goroutine waiting", &yields)
	}
}
