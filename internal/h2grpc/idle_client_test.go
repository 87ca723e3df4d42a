package h2grpc

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/nonblock"
)

// At a tick, an idle connection releases its read buffer. Requests that arrive at that moment must be
// answered.
func TestRequestsDuringTheReleaseOfBuffersAreAnswered(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Path: path, Method: &echo{}, Inline: true, Tick: 100 * time.Microsecond})
	served := make(chan error)
	go func() { served <- s.Serve(nonblock.Listener(l)) }()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = nc.SetDeadline(time.Now().Add(time.Minute))
	c := handshake(t, nc)
	for range 500 {
		c.must("m", "m")
		time.Sleep(110 * time.Microsecond) // waits for about a tick, so that the next request arrives when the connection releases its buffer
	}
	now, cancel := context.WithCancel(t.Context())
	cancel()
	s.Stop(now)
	if err := <-served; err != nil {
		t.Error(err)
	}
}
