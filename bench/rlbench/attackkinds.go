package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

// attackKind is something that one client can do to a server. run returns when ctx ends.
type attackKind struct {
	name   string
	stores []string
	tls    bool // the gRPC listener has TLS
	run    func(ctx context.Context, c *attackCmd)
}

var (
	inMemory = []string{"memory"}
	onRedis  = []string{"redis"}
)

var attackKinds = []attackKind{
	{"none", []string{"memory", "redis"}, false, func(ctx context.Context, _ *attackCmd) { <-ctx.Done() }},
	{"resets", onRedis, false, func(ctx context.Context, c *attackCmd) {
		all := requests(4000, http2.Setting{}, true)
		repeat(ctx, 1, func(int) {
			conn, err := net.Dial("tcp", c.GRPC)
			if err != nil {
				return
			}
			_ = conn.(*net.TCPConn).SetLinger(0)
			go func() { _, _ = conn.Write(all) }()
			time.Sleep(3 * time.Millisecond)
			conn.Close()
		})
	}},
	{"streams", inMemory, false, func(ctx context.Context, c *attackCmd) {
		hold(ctx, c.GRPC, 14, requests(16_000, http2.Setting{}, false))
	}},
	{"bodies", inMemory, false, func(ctx context.Context, c *attackCmd) { hold(ctx, c.GRPC, 14, incomplete(16_000)) }},
	{"window of 0", inMemory, false, func(ctx context.Context, c *attackCmd) {
		hold(ctx, c.GRPC, 20, requests(16_000, http2.Setting{ID: http2.SettingInitialWindowSize}, true))
	}},
	{"watches", inMemory, false, func(ctx context.Context, c *attackCmd) { hold(ctx, c.GRPC, 14, watches(256)) }},
	{"hpack", inMemory, false, func(ctx context.Context, c *attackCmd) { hold(ctx, c.GRPC, 8, references(20)) }},
	{"headers", inMemory, false, func(ctx context.Context, c *attackCmd) {
		head := "GET /v1/auth HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("a:\r\n", 32<<10)
		repeat(ctx, 100, func(int) { exchange(ctx, c.HTTP, []byte(head)) })
	}},
	{"pipelining", inMemory, false, func(ctx context.Context, c *attackCmd) {
		body := `{"domain": "bench", "descriptors": [{"entries": [{"key": "user_id", "value": "p"}]}]}`
		one := fmt.Sprintf("POST /json HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		all := []byte(strings.Repeat(one, 100))
		repeat(ctx, 16, func(int) { flow(ctx, c.HTTP, 0, func() []byte { return all }) })
	}},
	{"handshakes", inMemory, true, func(ctx context.Context, c *attackCmd) {
		repeat(ctx, 64, func(int) {
			conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Second}, "tcp", c.GRPC, clientTLS)
			if err == nil {
				conn.Close()
			}
		})
	}},
	{"100 connections", onRedis, false, func(ctx context.Context, c *attackCmd) {
		hold(ctx, c.GRPC, 100, requests(16_000, http2.Setting{}, true))
	}},
	{"1000 outstanding", onRedis, false, func(ctx context.Context, c *attackCmd) { outstanding(ctx, c, 1, 1000) }},
	{"10000 outstanding", onRedis, false, func(ctx context.Context, c *attackCmd) { outstanding(ctx, c, 10, 1000) }},
	{"bursts", onRedis, false, func(ctx context.Context, c *attackCmd) {
		repeat(ctx, 1, func(int) {
			sender := newClient(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
			_ = sender.to.WriteWindowUpdate(0, 1<<30)
			flow(ctx, c.GRPC, 25*time.Millisecond, func() []byte {
				for range 500 {
					_ = sender.to.WriteData(sender.open(shouldRateLimit), true, message)
				}
				defer sender.out.Reset()
				return bytes.Clone(sender.out.Bytes())
			})
		})
	}},
}

func outstanding(ctx context.Context, c *attackCmd, connections, each int) {
	_, _ = load.Run(ctx, load.Config{Target: c.GRPC, Connections: connections, Outstanding: each, Descriptors: []string{"user_id={}"}, Keys: 1000, Duration: c.Duration})
}

// repeat calls f on n goroutines, again and again, until ctx ends.
func repeat(ctx context.Context, n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			for ctx.Err() == nil {
				f(i)
			}
		})
	}
	all.Wait()
}

// hold opens n connections, sends all on each, and keeps them open. It opens those again that the server closes.
func hold(ctx context.Context, address string, n int, all []byte) {
	repeat(ctx, n, func(int) {
		exchange(ctx, address, all)
		time.Sleep(10 * time.Millisecond)
	})
}

// flow sends what next returns on a new connection, again and again with a pause, until the connection or ctx ends.
func flow(ctx context.Context, address string, pause time.Duration, next func() []byte) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	for {
		if _, err := conn.Write(next()); err != nil {
			return
		}
		time.Sleep(pause)
	}
}

// exchange sends all on a new connection, and reads until the server closes it or ctx ends.
func exchange(ctx context.Context, address string, all []byte) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	go func() { _, _ = conn.Write(all) }()
	_, _ = io.Copy(io.Discard, conn)
}

// client writes what a gRPC client sends.
type client struct {
	out   bytes.Buffer
	to    *http2.Framer
	block bytes.Buffer
	hpack *hpack.Encoder
	next  uint32
}

func newClient(settings ...http2.Setting) *client {
	c := &client{next: 1}
	c.to, c.hpack = http2.NewFramer(&c.out, nil), hpack.NewEncoder(&c.block)
	c.out.WriteString(http2.ClientPreface)
	_ = c.to.WriteSettings(settings...)
	return c
}

func (c *client) open(path string) uint32 {
	c.block.Reset()
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", path}, {":authority", "a"}, {"te", "trailers"}, {"content-type", "application/grpc"}} {
		_ = c.hpack.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	id := c.next
	c.next += 2
	_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.block.Bytes(), EndHeaders: true})
	return id
}

const shouldRateLimit = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

// message is a RateLimitRequest for the domain bench with one descriptor, user_id=a, after its length.
var message = func() []byte {
	field := func(number byte, b string) string { return string([]byte{number<<3 | 2, byte(len(b))}) + b }
	entry := field(1, "user_id") + field(2, "a")
	m := field(1, "bench") + field(2, field(1, entry))
	return append([]byte{0, 0, 0, 0, byte(len(m))}, m...)
}()

// requests opens n streams, complete or without a body.
func requests(n int, setting http2.Setting, complete bool) []byte {
	var settings []http2.Setting
	if setting.ID != 0 {
		settings = append(settings, setting)
	}
	c := newClient(settings...)
	for range n {
		if id := c.open(shouldRateLimit); complete {
			_ = c.to.WriteData(id, true, message)
		}
	}
	return c.out.Bytes()
}

func incomplete(n int) []byte {
	c := newClient()
	for range n {
		_ = c.to.WriteData(c.open(shouldRateLimit), false, message[:1])
	}
	return c.out.Bytes()
}

func watches(n int) []byte {
	c := newClient()
	for range n {
		_ = c.to.WriteData(c.open("/grpc.health.v1.Health/Watch"), true, make([]byte, 5))
	}
	return c.out.Bytes()
}

// references sends header blocks of 255 KiB, each byte of which refers to a field of the static table.
func references(n int) []byte {
	const frame = 16 << 10
	c := newClient()
	for range n {
		rest := bytes.Repeat([]byte{0x80 | 32}, 255<<10)
		_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: c.next, BlockFragment: rest[:frame]})
		for rest = rest[frame:]; len(rest) > 0; {
			part := min(frame, len(rest))
			_ = c.to.WriteContinuation(c.next, part == len(rest), rest[:part])
			rest = rest[part:]
		}
		c.next += 2
	}
	return c.out.Bytes()
}
