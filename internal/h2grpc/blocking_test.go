package h2grpc

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/rlsidecar/rlsidecar/internal/testkit/certtest"
)

// pipes is a listener whose connections have no buffer: a write waits until the other side reads.
type pipes struct {
	net.Listener
	accept chan net.Conn
	closed chan struct{}
	close  func()
}

func listenPipes() *pipes {
	l := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case nc := <-l.accept:
		return nc, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error { l.close(); return nil }

// dial connects a client, with TLS unless config is nil, and exchanges the prefaces and SETTINGS. The client's
// reads fail after five minutes.
func (l *pipes) dial(t *testing.T, config *tls.Config) *client {
	t.Helper()
	near, far := net.Pipe()
	l.accept <- far
	_ = near.SetReadDeadline(time.Now().Add(5 * time.Minute))
	if config != nil {
		near = tls.Client(near, config)
	}
	t.Cleanup(func() { near.Close() })
	c := newClient(t, near)
	written := make(chan error)
	go func() { written <- c.write() }() // the server writes first
	for {
		f, err := c.read()
		if err != nil {
			t.Fatal(err)
		}
		if f.Header().Type == http2.FrameWindowUpdate {
			break
		}
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if f, err := c.read(); err != nil || f.Header().Type != http2.FrameSettings {
		t.Fatalf("got %v, %v; want a SETTINGS frame", f, err)
	}
	return c
}

// eachTransport tests a server whose connections are pipes, without TLS and with it.
func eachTransport(t *testing.T, test func(t *testing.T, s *Server, dial func() *client)) {
	t.Helper()
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var near, far *tls.Config
				if secure {
					near, far = certificates(t)
				}
				l := listenPipes()
				c := Config{Path: path, Method: &echo{}, Inline: true}
				if secure {
					c.Handshake = func(nc net.Conn) (*tls.Conn, error) {
						t := tls.Server(nc, far)
						return t, t.Handshake()
					}
				}
				s := New(c)
				serveOn(t, s, l)
				test(t, s, func() *client { return l.dial(t, near) })
			})
		})
	}
}

func certificates(t *testing.T) (client, server *tls.Config) {
	t.Helper()
	authority := certtest.New(t)
	cert, key := authority.Issue(t, 1, "test")
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{RootCAs: authority.Pool(), ServerName: "test", NextProtos: []string{"h2"}},
		&tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}}
}

// If one client does not read, the server must still serve and check the other connections.
func TestAClientThatDoesNotReadDelaysNobody(t *testing.T) {
	eachTransport(t, func(t *testing.T, _ *Server, dial func() *client) {
		notReading := dial()
		notReading.open(notReading.fields("grpc-timeout", "1S"))
		notReading.flush()
		began := time.Now()
		other := dial()
		_ = other.to.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: other.fields()})
		other.flush()
		if code := other.readToEnd(); code != http2.ErrCodeEnhanceYourCalm {
			t.Errorf("with an incomplete header block, the connection ended with %v; want ENHANCE_YOUR_CALM", code)
		}
		if took := time.Since(began); took < blockTimeout || took > blockTimeout+2*time.Second {
			t.Errorf("with an incomplete header block, the connection ended after %v; want about %v", took, blockTimeout)
		}
		time.Sleep(writeTimeout)
		synctest.Wait()
		if _, err := notReading.nc.Write([]byte{0}); err == nil {
			t.Error("the client that does not read is still connected")
		}
	})
}

// Stop must not block on clients that do not read, neither when it writes GOAWAY nor when it closes their
// connections. It must return when its context ends.
func TestStopDoesNotWaitForClients(t *testing.T) {
	const bound = time.Second
	for name, prepare := range map[string]func(c *client){
		"reads nothing": func(*client) {},
		"reads the GOAWAY, and no more": func(c *client) {
			go func() {
				for {
					if f, err := c.read(); err != nil || f.Header().Type == http2.FramePing {
						return
					}
				}
			}()
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachTransport(t, func(t *testing.T, s *Server, dial func() *client) {
				for range 3 {
					c := dial()
					c.open(c.fields()) // a request that is never complete
					c.flush()
					prepare(c)
				}
				ctx, cancel := context.WithTimeout(t.Context(), bound)
				defer cancel()
				began := time.Now()
				s.Stop(ctx)
				if took := time.Since(began); took != bound {
					t.Errorf("Stop took %v; want %v", took, bound)
				}
			})
		})
	}
}

// While TLS closes a connection, a goroutine that completes one of its requests must not wait for the client.
func TestNoLockIsHeldWhileTLSCloses(t *testing.T) {
	eachTransport(t, func(t *testing.T, s *Server, dial func() *client) {
		c := dial()
		c.open(c.fields())
		c.flush()
		synctest.Wait()
		conn := s.openConns()[0]
		go conn.fail(nil) // the client does not read, and no other goroutine writes
		synctest.Wait()
		if conn.mu.TryLock() {
			conn.mu.Unlock()
		} else {
			t.Error("conn.mu is held; want it free")
		}
	})
}

// A client on a real socket sends thousands of incomplete requests with short deadlines, and does not read.
// The server must still reset such requests of other clients.
func TestAFullSocketDelaysNobody(t *testing.T) {
	s, dial := serveTCP(t, &echo{}, 10*ms, func(l net.Listener) net.Listener { return smallBuffers{l} })
	connect := func() *client {
		nc := dial()
		_ = nc.SetReadBuffer(1)
		return handshake(t, nc)
	}
	notReading := connect()
	notReading.must("m", "m")
	attacked := s.openConns()[0]
	full := func() bool {
		attacked.mu.Lock()
		defer attacked.mu.Unlock()
		return attacked.writing
	}
	for end := time.Now().Add(time.Minute); !full(); time.Sleep(ms) {
		if time.Now().After(end) {
			t.Fatal("the socket does not become full")
		}
		for range 1000 {
			notReading.open(notReading.fields("grpc-timeout", "1n"))
		}
		notReading.flush()
	}
	other := connect()
	for range 3 {
		id := other.open(other.fields("grpc-timeout", "1n"))
		other.flush()
		other.wasReset(id, http2.ErrCodeCancel)
	}
}

type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err == nil {
		_ = nc.(*net.TCPConn).SetWriteBuffer(1)
	}
	return nc, err
}

// partial is a connection whose WriteOnce writes two bytes. Before that, it calls meanwhile.
type partial struct {
	net.Conn
	meanwhile func()
	written   chan []byte
}

func (p *partial) WriteOnce(b []byte) (int, error) {
	p.meanwhile()
	n, err := p.Write(b[:2])
	return n, err
}

func (p *partial) Write(b []byte) (int, error) {
	p.written <- bytes.Clone(b)
	return len(b), nil
}

// The rest of a partial write must come before the frames that were appended during it, and neither may be lost.
func TestAPartialWriteIsCompleted(t *testing.T) {
	s := &Server{}
	p := &partial{written: make(chan []byte, 9)}
	c := newConn(s, p)
	p.meanwhile = func() {
		c.mu.Lock()
		c.out = append(c.out, "later"...)
		c.mu.Unlock()
	}
	c.mu.Lock()
	c.out = append(c.out, "first"...)
	c.flushSoon()
	s.goroutines.Wait()
	close(p.written)
	var got []byte
	for b := range p.written {
		got = append(got, b...)
	}
	if string(got) != "firstlater" {
		t.Errorf("%q was written, want %q", got, "firstlater")
	}
}

// Completing a request must not wait for the client. The client must get all answers when it reads.
func TestCompletingDoesNotWaitForTheClient(t *testing.T) {
	store := newSlowStore(1)
	m := &echo{store: store}
	_, connect := serveTCP(t, m, 0, plain)
	c := handshake(t, connect(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 24})
	_ = c.to.WriteWindowUpdate(0, 1<<30)
	var ids []uint32
	for range 60 { // the kernel buffers fewer bytes
		ids = append(ids, c.send("long 200000"))
		c.flush()
		time.Sleep(ms)
	}
	settled := func() bool { return len(m.batchSizes()) > 1 && int(store.ended.Load()) == len(m.batchSizes()) }
	for end := time.Now().Add(time.Minute); !settled() && time.Now().Before(end); {
		time.Sleep(ms)
	}
	if !settled() {
		t.Errorf("%d of %d batches have ended; want all, and more than one", store.ended.Load(), len(m.batchSizes()))
	}
	for i, id := range ids {
		if n := len(c.answer(id).message()); n != 200_000 {
			t.Errorf("answer %d has %d bytes; want 200000", i, n)
		}
	}
}
