package server

import (
	"bytes"
	"fmt"
	"net"
	"runtime"
	rtmetrics "runtime/metrics"
	"testing"

	"golang.org/x/net/http2"
)

func inUse() (bytes uint64) {
	runtime.GC()
	runtime.GC() // objects in a sync.Pool survive the first collection
	samples := []rtmetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	rtmetrics.Read(samples)
	return samples[0].Value.Uint64() + samples[1].Value.Uint64()
}

// After a few KiB of traffic, an idle connection needs at most 12 KiB over gRPC, and over HTTP what net/http keeps. Both
// include the client's end, which is in this process too.
func TestIdleConnectionsCostLittle(t *testing.T) {
	const connections = 1000
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
		most uint64
	}{"gRPC": {x.GRPC, call.Bytes(), 12 << 10}, "HTTP": {x.HTTP, get, 32 << 10}} {
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
			eventually(t, fmt.Sprintf("the connections take at most %d bytes each", c.most), func() bool { return inUse() < before+connections*c.most })
			t.Logf("%d bytes each", (inUse()-before)/connections)
		})
	}
}
