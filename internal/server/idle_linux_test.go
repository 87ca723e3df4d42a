package server

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	rtmetrics "runtime/metrics"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

func inUse() (bytes uint64) {
	runtime.GC()
	runtime.GC() // objects in a sync.Pool survive the first collection
	samples := []rtmetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	rtmetrics.Read(samples)
	return samples[0].Value.Uint64() + samples[1].Value.Uint64()
}

// After a few KiB of traffic, an idle connection needs at most 12 KiB, including the client's end, which is in this
// process too.
func TestIdleConnectionsCostLittle(t *testing.T) {
	if engine == GRPCEngine {
		t.Skip("grpc-go needs more memory for an idle connection")
	}
	const connections, most = 1000, 12 << 10
	x := start(t, admitAll, func(c *Config) { c.GRPCMaxConnections, c.HTTPMaxConnections = 2*connections, 2*connections })
	var call bytes.Buffer
	call.WriteString(http2.ClientPreface)
	to := http2.NewFramer(&call, nil)
	_ = to.WriteSettings()
	for range 800 { // 7 KiB of frames, before the connection is idle
		_ = to.WriteSettings()
	}
	get := []byte("GET /v1/auth HTTP/1.1\r\nHost: h\r\nX-Long: " + string(bytes.Repeat([]byte("x"), 3000)) + "\r\n\r\n")
	for name, c := range map[string]struct {
		at   net.Addr
		send []byte
	}{"gRPC": {x.GRPC, call.Bytes()}, "HTTP": {x.HTTP, get}} {
		t.Run(name, func(t *testing.T) {
			before := inUse()
			answer := make([]byte, 4096)
			for range connections {
				nc, err := net.Dial("tcp", c.at.String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { nc.Close() })
				if _, err := nc.Write(c.send); err != nil {
					t.Fatal(err)
				}
				if _, err := nc.Read(answer); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "the connections take at most 12 KiB each", func() bool { return inUse() < before+connections*most })
			t.Logf("%d bytes each", (inUse()-before)/connections)
		})
	}
}

// A parked HTTP connection is idle, and net/http regards it as closed. It must answer the next request, even if that
// arrives in parts. It ends after the idle timeout, and when the server stops.
func TestAParkedConnectionAnswersTheNextRequest(t *testing.T) {
	t.Parallel()
	usual := parkAfter
	t.Cleanup(func() { parkAfter = usual })
	parkAfter = 20 * time.Millisecond
	x := start(t, admitAll, func(c *Config) { c.HTTPIdleTimeout = 300 * time.Millisecond })
	dial := func() (net.Conn, *bufio.Reader) {
		nc, err := net.Dial("tcp", x.HTTP.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		_ = nc.SetDeadline(time.Now().Add(time.Minute))
		return nc, bufio.NewReader(nc)
	}
	exchange := func(nc net.Conn, r *bufio.Reader, parts ...string) {
		t.Helper()
		for _, part := range parts {
			_, _ = io.WriteString(nc, part)
			time.Sleep(3 * parkAfter)
		}
		answer, err := http.ReadResponse(r, nil)
		if err != nil || answer.StatusCode != 200 {
			t.Fatalf("%q: got %v, %v; want no error and status 200", parts, answer, err)
		}
		answer.Body.Close()
	}
	nc, r := dial()
	const request = "GET /v1/auth HTTP/1.1\r\nHost: h\r\n\r\n"
	exchange(nc, r, request)
	for range 3 {
		exchange(nc, r, request)
	}
	exchange(nc, r, request[:1], request[1:]) // net/http regards the connection as idle until it has 4 bytes
	exchange(nc, r, request[:3], request[3:])
	exchange(nc, r, request+request[:2], request[2:]) // a part of the next request is in net/http's buffer
	exchange(nc, r)
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("after the idle timeout: %v; want the error %v", err, io.EOF)
	}
	nc, r = dial()
	exchange(nc, r, request)
	if err := x.stop(); err != nil {
		t.Error(err)
	}
	if _, err := r.ReadByte(); err == nil || os.IsTimeout(err) {
		t.Errorf("after the end of the server: %v; want an error and os.IsTimeout(err) false", err)
	}
}
