package h2grpc

import (
	"testing"
	"time"
)

// At a tick, an idle connection releases its read buffer. Requests that arrive at that moment must be
// answered.
func TestRequestsDuringTheReleaseOfBuffersAreAnswered(t *testing.T) {
	_, connect := serveTCP(t, &echo{}, 100*time.Microsecond, plain)
	c := handshake(t, connect())
	for range 500 {
		c.must("m", "m")
		time.Sleep(110 * time.Microsecond) // waits for about a tick, so that the next request arrives when the connection releases its buffer
	}
}
