package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

// streamRoutes are those for streams of other kinds than requests: tunnels, gRPC, and streams that a timeout ends.
const streamRoutes = `
              - { match: { connect_matcher: {} }, route: { cluster: app, timeout: 0s, upgrade_configs: [ { upgrade_type: CONNECT, connect_config: {} } ] } }
              - { match: { prefix: /idle }, route: { cluster: app, prefix_rewrite: /a, timeout: 0s, idle_timeout: 1s, upgrade_configs: [ { upgrade_type: websocket } ] } }
              - { match: { prefix: /echo. }, route: { cluster: grpc, timeout: 0s } }
`

const grpcCluster = `
  clusters:
  - name: grpc
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: { http2_protocol_options: {} }
    load_assignment: { cluster_name: grpc, endpoints: [ { lb_endpoints: [ { endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 9001 } } } } ] } ] }
`

// echoStreams serves gRPC calls that send back what they receive, until the client half-closes. The call /echo./abort
// fails after the first message.
func echoStreams(t *testing.T, address string) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		for {
			var m emptypb.Empty
			if err := stream.RecvMsg(&m); err != nil {
				return nil
			}
			if err := stream.SendMsg(&m); err != nil {
				return err
			}
			if method == "/echo./abort" {
				return status.Error(codes.Aborted, "aborted")
			}
		}
	}))
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() { server.Stop(); served.Wait() })
}

// closedWindow sends GET path over HTTP/2, and lets Envoy send no byte of the body.
func closedWindow(t *testing.T, s *stack, path string) (conn net.Conn, to *http2.Framer) {
	t.Helper()
	conn = dialFrom(t, "", net.JoinHostPort(s.addr, s.port))
	to = startHTTP2(conn, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	startStream(to, 1, true, header{":method", "GET"}, header{":scheme", "http"}, header{":path", path}, header{":authority", "a"}, header{"x-id", "window"})
	_ = conn.SetReadDeadline(time.Now().Add(maxWait))
	for {
		frame, err := to.ReadFrame()
		if err != nil {
			t.Fatalf("no answer over HTTP/2: %v", err)
		}
		if frame.Header().Type == http2.FrameHeaders {
			return conn, to
		}
	}
}

// upgraded opens a tunnel with the first lines of a request, and returns it after the answer.
func upgraded(t *testing.T, s *stack, head string, want int) (*net.TCPConn, *bufio.Reader) {
	t.Helper()
	conn := dialFrom(t, "", net.JoinHostPort(s.addr, s.port)).(*net.TCPConn)
	_ = conn.SetDeadline(time.Now().Add(maxWait))
	_, _ = io.WriteString(conn, head+"\r\n\r\n")
	in := bufio.NewReader(conn)
	answer, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect})
	if err != nil || answer.StatusCode != want {
		t.Fatalf("%s: got %v, %v; want status %d", head, answer, err, want)
	}
	return conn, in
}

// bidi opens a gRPC stream through Envoy, on which a message has come back.
func bidi(t *testing.T, s *stack, method string) (conn *grpc.ClientConn, stream grpc.ClientStream, cancel func()) {
	t.Helper()
	conn = dial(t, s.addr+":"+s.port)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err == nil {
		err = stream.SendMsg(&emptypb.Empty{})
	}
	if err == nil {
		err = stream.RecvMsg(&emptypb.Empty{})
	}
	if err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	t.Cleanup(cancel)
	return conn, stream, cancel
}

// Each stream holds one slot while it runs, and returns it when it ends. ttl is an hour, so no slot is free before.
func TestStreamsOfEveryKindReturnTheirSlots(t *testing.T) {
	t.Parallel()
	tooltest.Path(t, "envoy") // skips the test if Envoy is missing
	s, f := startInFlight(t, "envoy-in-flight", "10000", []change{{"capacity: 20", "capacity: 3000"}, {"ttl: 30s", "ttl: 1h"}})
	const slots = 3000
	echoStreams(t, s.addr+":9001")
	s.runEnvoy(t, s.write(t, "envoy-in-flight/envoy.yaml", longTimeout,
		change{"              - match: { prefix: / }\n", streamRoutes[1:] + "              - match: { prefix: / }\n"},
		change{"stream_idle_timeout: 60s", "stream_idle_timeout: 2s"},
		change{"route: { cluster: app, timeout: 0s,", "route: { cluster: app, timeout: 0s, idle_timeout: 0s,"},
		change{"\n  clusters:\n", grpcCluster},
	))
	const websocket = " HTTP/1.1\r\nHost: a\r\nX-Id: ws\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
	tunnel := func() (*net.TCPConn, *bufio.Reader) {
		return upgraded(t, s, "CONNECT a:80 HTTP/1.1\r\nHost: a:80", 200)
	}
	for _, test := range []struct {
		name  string
		start func() (end func()) // ends the stream; nil if a timeout ends it
	}{
		{"CONNECT, the client closes", func() func() { c, _ := tunnel(); return func() { c.Close() } }},
		{"CONNECT, the client resets", func() func() { c, _ := tunnel(); return func() { _ = c.SetLinger(0); c.Close() } }},
		{"CONNECT, the application closes", func() func() {
			c, in := tunnel()
			return func() {
				_, _ = io.WriteString(c, "GET /late/fast HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
				_, _ = io.Copy(io.Discard, in)
				c.Close()
			}
		}},
		{"WebSocket, idle", func() func() { upgraded(t, s, "GET /idle/websocket"+websocket, 101); return nil }},
		{"WebSocket, the client resets", func() func() {
			c, _ := upgraded(t, s, "GET /a/websocket"+websocket, 101)
			return func() { _ = c.SetLinger(0); c.Close() }
		}},
		{"gRPC, the client half-closes", func() func() { _, stream, _ := bidi(t, s, "/echo./x"); return func() { _ = stream.CloseSend() } }},
		{"gRPC, the client cancels", func() func() { _, _, cancel := bidi(t, s, "/echo./x"); return cancel }},
		{"gRPC, the client's connection ends", func() func() { conn, _, _ := bidi(t, s, "/echo./x"); return func() { conn.Close() } }},
		{"a closed window, the client resets", func() func() {
			c, to := closedWindow(t, s, "/a/stream")
			return func() { _ = to.WriteRSTStream(1, http2.ErrCodeCancel); t.Cleanup(func() { c.Close() }) }
		}},
		{"a closed window, the connection ends", func() func() { c, _ := closedWindow(t, s, "/a/stream"); return func() { c.Close() } }},
		{"a closed window, idle", func() func() { c, _ := closedWindow(t, s, "/idle/stream"); t.Cleanup(func() { c.Close() }); return nil }},
	} {
		end := test.start()
		if left := s.slotsLeft(t); end != nil && left != slots-1 {
			t.Errorf("%s: %d slots are free while the stream runs, want %d", test.name, left, slots-1)
		}
		if end != nil {
			end()
		}
		eventually(t, test.name+": its slot is free", func() bool { return s.slotsLeft(t) == slots })
	}
	if err := func() error { _, stream, _ := bidi(t, s, "/echo./abort"); return stream.RecvMsg(&emptypb.Empty{}) }(); status.Code(err) != codes.Aborted {
		t.Errorf("the application aborts: got %v", err)
	}
	s.awaitSlots(t, slots)
	// All of them end in the same moment: their client leaves.
	const done = `rlsidecar_slots_ended_total{door="done",outcome="returned"}`
	leave := s.flood(t, f, slots)
	before := metric(s.addr, done)
	leave()
	s.awaitSlots(t, slots)
	eventually(t, fmt.Sprintf("%d slots were returned by done calls", slots), func() bool { // a group is free before it is counted
		return metric(s.addr, done)-before == slots
	})
}

// flood starts n requests over HTTP/2, and returns when all are in flight. leave closes their connections. On a busy
// machine Envoy or the sidecar may deny some of so many checks, so these requests are sent again. A connection starts
// when the requests of the one before are in flight: more requests at once would make a slow machine deny most of them.
func (s *stack) flood(t *testing.T, f *flights, n int) (leave func()) {
	t.Helper()
	const streams = 100 // of a connection
	var all sync.WaitGroup
	var denied atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	leave = func() { cancel(); all.Wait() }
	t.Cleanup(leave)
	for i := range n / streams {
		conn := dialFrom(t, "", net.JoinHostPort(s.addr, s.port))
		client, err := overH2C.NewClientConn(conn)
		if err != nil {
			t.Fatal(err)
		}
		context.AfterFunc(ctx, func() { conn.Close() })
		for j := range streams {
			all.Go(func() {
				for ctx.Err() == nil {
					r, _ := http.NewRequest(http.MethodGet, "http://a/a/hold", nil)
					r.Header.Set("X-Id", fmt.Sprint(i, " ", j))
					if answer, err := client.RoundTrip(r); err == nil {
						answer.Body.Close()
						denied.Add(1)
					}
					time.Sleep(50 * time.Millisecond)
				}
			})
		}
		eventually(t, "all are in flight", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return len(f.running) == (i+1)*streams
		})
	}
	t.Logf("%d requests were sent again", denied.Load())
	if left := s.slotsLeft(t); left != 0 {
		t.Errorf("%d slots are free, want none", left)
	}
	return leave
}
