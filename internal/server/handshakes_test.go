package server

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
	"github.com/rlsidecar/rlsidecar/internal/testkit/certtest"
	"github.com/rlsidecar/rlsidecar/internal/tlsfiles"
)

// While all places are taken, the gRPC listener must not answer a client's handshake.
func TestTheListenerBoundsHandshakes(t *testing.T) {
	ca := certtest.New(t)
	folder := t.TempDir()
	ca.Secret(t, folder, 1)
	s, err := newServer(Config{TLS: tlsfiles.Server{Cert: filepath.Join(folder, "tls.crt"), Key: filepath.Join(folder, "tls.key")}}, zap.NewNop())
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
		_ = <-served
	}()
	for range cap(s.handshakes.Computing) {
		s.handshakes.Computing <- struct{}{}
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
	for range cap(s.handshakes.Computing) {
		<-s.handshakes.Computing
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
