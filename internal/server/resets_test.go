package server

import (
	"bytes"
	"net"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// recorded returns the bytes that a gRPC client sends on one connection: n calls of ShouldRateLimit, and a call of
// another method.
func recorded(t *testing.T, n int) []byte {
	t.Helper()
	message, err := proto.Marshal(request("d", descriptor("all=1")))
	if err != nil {
		t.Fatal(err)
	}
	message = append([]byte{0, 0, 0, 0, byte(len(message))}, message...)
	var out, block bytes.Buffer
	out.WriteString(http2.ClientPreface)
	to, encoder := http2.NewFramer(&out, nil), hpack.NewEncoder(&block)
	_ = to.WriteSettings()
	for i := range n + 1 {
		method := "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
		if i == n {
			method = "/grpc.health.v1.Health/Watch"
			message = make([]byte, 5)
		}
		block.Reset()
		for _, f := range [][2]string{
			{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "test"},
			{"content-type", "application/grpc"}, {"te", "trailers"},
		} {
			_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
		}
		id := uint32(2*i + 1)
		_ = to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true})
		_ = to.WriteData(id, true, message)
	}
	return out.Bytes()
}

// A client that resets its connection, after any byte or at any time, must leave nothing behind that still runs.
func TestResetConnectionsLeaveNothingRunning(t *testing.T) {
	redis := redistest.Start(t)
	x := start(t, shared, onRedis("redis://"+redis.Addr), func(c *Config) { c.DrainTimeout = 5 * time.Minute })
	x.send(t, "all=1")
	before := x.metric(t, `rlsidecar_connections\{listener="grpc"\}`)
	short, long := recorded(t, 2), recorded(t, 4000)
	for n := range len(short) + 1 {
		resetAfter(t, x.GRPC, short[:n], 0)
		resetAfter(t, x.GRPC, short[:n], time.Millisecond)
	}
	for i := range 200 {
		resetAfter(t, x.GRPC, long, time.Duration(i)*time.Millisecond/20)
	}
	call := []byte("POST /json HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 79\r\n\r\n" +
		`{"domain": "d", "descriptors": [{"entries": [{"key": "all", "value": "1"}]}]} ` + "\n")
	for n := range len(call) + 1 {
		resetAfter(t, x.HTTP, call[:n], 0)
		resetAfter(t, x.HTTP, call[:n], time.Millisecond)
	}
	eventually(t, "the reset connections have ended", func() bool {
		return x.metric(t, `rlsidecar_connections\{listener="grpc"\}`) == before && x.metric(t, `rlsidecar_connections\{listener="http"\}`) == 0
	})
	if got := x.send(t, "all=2").OverallCode; got != rls.RateLimitResponse_OK {
		t.Errorf("another client got %v; want OK", got)
	}
	began := time.Now()
	if err := x.stop(); err != nil || time.Since(began) > 4*time.Minute {
		t.Errorf("the server stopped after %v, %v; want it to stop before the drain timeout", time.Since(began), err)
	}
}

// resetAfter connects, sends b, and resets the connection after d, or when b is sent if d is 0.
func resetAfter(t *testing.T, a net.Addr, b []byte, d time.Duration) {
	t.Helper()
	nc, err := net.Dial("tcp", a.String())
	if err != nil {
		t.Fatal(err)
	}
	_ = nc.(*net.TCPConn).SetLinger(0)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = nc.Write(b) // fails if the reset comes first
	}()
	if d == 0 {
		<-sent
	} else {
		time.Sleep(d)
	}
	nc.Close()
	<-sent
}
