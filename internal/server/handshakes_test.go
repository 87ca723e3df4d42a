package server

import (
	"crypto"
	"crypto/tls"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
	"github.com/rlsidecar/rlsidecar/internal/testkit/certtest"
)

// countingKey is a private key that counts the handshakes that sign at the same time.
type countingKey struct {
	crypto.Signer
	now, most atomic.Int64
	sign      func()
}

func (k *countingKey) Sign(random io.Reader, digest []byte, o crypto.SignerOpts) ([]byte, error) {
	for now := k.now.Add(1); now > k.most.Load(); {
		k.most.Store(now)
	}
	defer k.now.Add(-1)
	k.sign()
	return k.Signer.Sign(random, digest, o)
}

func TestFewHandshakesComputeAtATime(t *testing.T) {
	ca := certtest.New(t)
	pair, err := tls.X509KeyPair(ca.Issue(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	key := &countingKey{Signer: pair.PrivateKey.(crypto.Signer), sign: func() { time.Sleep(2 * time.Millisecond) }} // without a bound, others sign meanwhile
	pair.PrivateKey = key
	h := newHandshakes(&tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool()})
	if want := max(1, runtime.GOMAXPROCS(0)/4); cap(h.computing) != want {
		t.Errorf("%d handshakes may compute at a time; want %d", cap(h.computing), want)
	}
	own, err := tls.X509KeyPair(ca.Issue(t, 2))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var all sync.WaitGroup
	defer all.Wait()
	connect := func() (client, server net.Conn) {
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if server, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		return client, server
	}
	for range 2 * cap(h.computing) { // clients that stop in the middle of their first message
		client, server := connect()
		defer client.Close()
		_, _ = client.Write([]byte{22, 3, 1, 1, 0, 1})
		all.Go(func() { _, _ = h.server(server) })
	}
	var done sync.WaitGroup
	for range 20 {
		client, server := connect()
		done.Go(func() {
			defer client.Close()
			c := tls.Client(client, &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{own}})
			if _, err := c.Write([]byte("x")); err != nil {
				t.Error(err)
			}
		})
		done.Go(func() {
			defer server.Close()
			c, err := h.server(server)
			if err == nil {
				_, err = c.Read(make([]byte, 1))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	done.Wait()
	if most := key.most.Load(); most > int64(cap(h.computing)) {
		t.Errorf("%d handshakes computed at the same time; want at most %d", most, cap(h.computing))
	}
	if len(h.computing) > 0 {
		t.Errorf("%d places are still taken", len(h.computing))
	}
}

// A client that does not read what the server sends must not keep others from their handshakes.
func TestAHandshakeThatWritesDoesNotCompute(t *testing.T) {
	h := newHandshakes(nil)
	near, far := net.Pipe()
	defer far.Close()
	c := h.begin(near)
	go far.Write([]byte("x")) //nolint:errcheck // the Read below fails too
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if len(h.computing) != 1 {
		t.Error("after a Read the handshake computes; want a place taken")
	}
	written := make(chan error, 1)
	go func() {
		_, err := c.Write([]byte("xy"))
		written <- err
	}()
	if _, err := far.Read(make([]byte, 1)); err != nil { // a part of what is written
		t.Fatal(err)
	}
	if len(h.computing) != 0 {
		t.Error("a Write that waits takes a place")
	}
	_, _ = far.Read(make([]byte, 1))
	if err := <-written; err != nil || len(h.computing) != 1 {
		t.Errorf("after the Write: %v, %d places taken; want none and 1", err, len(h.computing))
	}
	if c.end(); len(h.computing) != 0 {
		t.Error("a place is taken after the end of the handshake")
	}
}

// While all places are taken, the gRPC listener must not answer a client's handshake.
func TestTheListenerBoundsHandshakes(t *testing.T) {
	ca := certtest.New(t)
	folder := t.TempDir()
	ca.Secret(t, folder, 1)
	s, err := newServer(Config{TLS: TLSFiles{Cert: filepath.Join(folder, "tls.crt"), Key: filepath.Join(folder, "tls.key")}}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	api, err := grpcapi.New(nil, s.metrics, s.config.Answers, s.log)
	if err != nil {
		t.Fatal(err)
	}
	d, err := s.grpcListener(api)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- d.serve(l) }()
	defer func() {
		d.stop(t.Context())
		<-served
	}()
	for range cap(s.handshakes.computing) {
		s.handshakes.computing <- struct{}{}
	}
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	watched := &watchedConn{Conn: nc}
	ended := make(chan error, 1)
	go func() {
		ended <- tls.Client(watched, &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1", NextProtos: []string{"h2"}}).Handshake()
	}()
	time.Sleep(100 * time.Millisecond) // a listener without the bound would answer meanwhile
	if n := watched.received.Load(); n > 0 {
		t.Errorf("the client received %d bytes while no handshake may compute; want none", n)
	}
	for range cap(s.handshakes.computing) {
		<-s.handshakes.computing
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

type watchedConn struct {
	net.Conn
	received atomic.Int64
}

func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received.Add(int64(n))
	return n, err
}
