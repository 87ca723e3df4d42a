//go:build !race

package h2grpc

import (
	"context"
	"net/http"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// A request must allocate nothing from the read to the write. Requests that arrive together must be answered
// in one write. The race detector makes a sync.Pool drop its content, so this test does not run with it.
func TestARequestAllocatesNothing(t *testing.T) {
	answered := Config{Method: &echo{}, Inline: true}
	t.Run("all fields are in the table", func(t *testing.T) { allocates(t, answered, "", 0) })
	t.Run("all fields but the path, as sent by Envoy", func(t *testing.T) { allocates(t, answered, ":path", 0) })
	submitted := Config{Method: &echo{store: newHandedOver()}}
	t.Run("another goroutine decides", func(t *testing.T) { allocates(t, submitted, "", 0) })
}

type handedOver chan *backend.Batch

func newHandedOver() handedOver {
	s := make(handedOver)
	go func() {
		for b := range s {
			source := b.Source
			b.Done(b)
			source.Flush()
		}
	}()
	return s
}

func (s handedOver) Submit(b *backend.Batch) { s <- b }

// allocates sends batches of 16 requests, and checks that a batch causes at most bound allocations. field is the
// name of a header field that the client does not add to the table, or "".
func allocates(t *testing.T, config Config, field string, bound float64) {
	t.Helper()
	config.Path, config.Others = path, http.HandlerFunc(others)
	s := New(config)
	nc, c := startTape(t, s)
	defer func() {
		close(nc.in)
		s.Stop(context.Background())
	}()
	c.notIndexed = field
	<-nc.out
	<-nc.out
	_ = c.to.WriteWindowUpdate(0, 1<<30)
	batch := func() []byte {
		for range 16 {
			c.send("question")
		}
		b := append([]byte(nil), c.out.Bytes()...)
		c.out.Reset()
		return b
	}
	const runs = 1000
	var batches [][]byte
	for range runs + 10 {
		batches = append(batches, batch())
	}
	send := func() int {
		nc.in <- batches[0]
		batches = batches[1:]
		return <-nc.out
	}
	first := send()
	for range 5 {
		if n := send(); n < 16*9 || n > first {
			t.Fatalf("a batch was answered in a write of %d bytes; want %d to %d", n, 16*9, first)
		}
	}
	if allocs := testing.AllocsPerRun(runs, func() { send() }); allocs > bound+0.5 { // the goroutine that checks timeouts may run in between
		t.Errorf("%v allocations for 16 requests; want at most %v", allocs, bound)
	}
}
