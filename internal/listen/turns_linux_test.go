package listen

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/nonblock"
)

// There is one processor. One client has sent very many requests at once when another one sends its first. That one must
// be served after a few of them, and before the runtime preempts the goroutine of the first client. The test counts
// requests, not time.
func TestRequestsThatArriveTogetherTakeTurns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	path := filepath.Join(t.TempDir(), "s")
	plain, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var greedy atomic.Int64 // requests of the greedy client that were served
	at := make(chan int64, 1)
	arrived := make(chan struct{})
	d := NewHTTP(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/quiet":
			at <- greedy.Load()
		case greedy.Add(1) == 1:
			<-arrived // the first request waits until the requests of both clients are in their sockets
		}
	}), 0, 0, zap.NewNop())
	l := bounded(nonblock.Listener(plain), 10)
	served := make(chan error, 1)
	go func() { served <- d.Serve(l) }()
	defer func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		d.Stop(now)
		_ = <-served
	}()
	send := func(text string) (closeConn func() error) {
		nc, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		_ = nc.(*net.UnixConn).SetWriteBuffer(1 << 20)
		if _, err := io.WriteString(nc, text); err != nil {
			t.Fatal(err)
		}
		go io.Copy(io.Discard, nc) //nolint:errcheck // the answers do not matter
		return nc.Close
	}
	const request = "GET /greedy HTTP/1.1\r\nHost:\r\n\r\n"
	var waits []int64
	for range 21 {
		greedy.Store(0)
		closeGreedy := send(strings.Repeat(request, 1000))
		for greedy.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		closeQuiet := send("GET /quiet HTTP/1.1\r\nHost:\r\n\r\n")
		arrived <- struct{}{}
		waits = append(waits, <-at)
		closeGreedy() //nolint:errcheck,gosec // the connection is not needed any more
		closeQuiet()  //nolint:errcheck,gosec // as above
	}
	slices.Sort(waits)
	if median := waits[len(waits)/2]; median > 60 { // not the largest: a thread that already waits in the poller can take a turn's event
		t.Errorf("the second client waited until the first one had %d requests served; want a median of at most 60", waits)
	}
}
