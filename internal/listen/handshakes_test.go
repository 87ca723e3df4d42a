package listen

import (
	"crypto"
	"crypto/tls"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	h := NewHandshakes(&tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool()})
	if want := max(1, runtime.GOMAXPROCS(0)/4); cap(h.Computing) != want {
		t.Errorf("%d handshakes may compute at a time; want %d", cap(h.Computing), want)
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
	for range 2 * cap(h.Computing) { // clients that stop in the middle of their first message
		client, server := connect()
		defer client.Close()
		_, _ = client.Write([]byte{22, 3, 1, 1, 0, 1})
		all.Go(func() { _, _ = h.Server(server) })
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
			c, err := h.Server(server)
			if err == nil {
				_, err = c.Read(make([]byte, 1))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	done.Wait()
	if most := key.most.Load(); most > int64(cap(h.Computing)) {
		t.Errorf("%d handshakes computed at the same time; want at most %d", most, cap(h.Computing))
	}
	if len(h.Computing) > 0 {
		t.Errorf("%d places are still taken", len(h.Computing))
	}
}

// A client that does not read what the server sends must not keep others from their handshakes.
func TestAHandshakeThatWritesDoesNotCompute(t *testing.T) {
	h := NewHandshakes(nil)
	near, far := net.Pipe()
	defer far.Close()
	c := h.begin(near)
	go far.Write([]byte("x")) //nolint:errcheck // the Read below fails too
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if len(h.Computing) != 1 {
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
	if len(h.Computing) != 0 {
		t.Error("a Write that waits takes a place")
	}
	_, _ = far.Read(make([]byte, 1))
	if err := <-written; err != nil || len(h.Computing) != 1 {
		t.Errorf("after the Write: %v, %d places taken; want none and 1", err, len(h.Computing))
	}
	if c.end(); len(h.Computing) != 0 {
		t.Error("a place is taken after the end of the handshake")
	}
}
