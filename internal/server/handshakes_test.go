package server

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path/filepath"
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
	handshake := func(within time.Duration) error {
		dialer := &net.Dialer{Deadline: time.Now().Add(within)}
		nc, err := tls.DialWithDialer(dialer, "tcp", l.Addr().String(), &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1", NextProtos: []string{"h2"}})
		if err == nil {
			nc.Close()
		}
		return err
	}
	if err := handshake(100 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) { // a listener without the bound would answer meanwhile
		t.Errorf("while no handshake may compute: got %v; want no answer", err)
	}
	for range cap(s.handshakes.Computing) {
		<-s.handshakes.Computing
	}
	if err := handshake(time.Minute); err != nil {
		t.Error(err)
	}
}
