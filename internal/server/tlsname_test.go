package server

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/rlsidecar/rlsidecar/internal/testkit/certtest"
	"github.com/rlsidecar/rlsidecar/internal/tlsfiles"
)

func filesOf(t *testing.T, a *certtest.Authority) tlsfiles.Server {
	t.Helper()
	folder := t.TempDir()
	f := tlsfiles.Server{Cert: filepath.Join(folder, "cert"), Key: filepath.Join(folder, "key"), ClientCA: filepath.Join(folder, "ca")}
	cert, key := a.Issue(t, 1)
	for name, data := range map[string][]byte{f.Cert: cert, f.Key: key, f.ClientCA: a.PEM} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func TestClientNameIsRequired(t *testing.T) {
	ca := certtest.New(t)
	files := filesOf(t, ca)
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	for name, accepted := range map[string]bool{"127.0.0.1": true, "envoy": false} {
		files.ClientName = name
		x := start(t, small, func(c *Config) { c.TLS = files })
		conn := dial(t, x.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{pair}})))
		if _, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("d", descriptor("k=v"))); (err == nil) != accepted {
			t.Errorf("%s: got %v; want the client accepted: %t", name, err, accepted)
		}
	}
	if err := (tlsfiles.Server{Cert: "c", Key: "k", ClientName: "n"}).Check(); err == nil {
		t.Error("check accepted a client name without a CA; want an error")
	}
}

func TestRedisOfAnyNameIsStillSigned(t *testing.T) {
	ca, otherCA := certtest.New(t), certtest.New(t)
	files := filesOf(t, ca)
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake() // the client's result reports whether the server was reached
			conn.Close()
		}
	}()
	defer func() { listener.Close(); <-served }()
	for name, c := range map[string]struct {
		redis    Redis
		accepted bool
	}{
		"with the name":    {Redis{CA: files.ClientCA}, false},
		"without the name": {Redis{CA: files.ClientCA, SkipHostname: true}, true},
		"another CA":       {Redis{CA: filesOf(t, otherCA).ClientCA, SkipHostname: true}, false},
		"the system's CAs": {Redis{SkipHostname: true}, false},
	} {
		conf, err := c.redis.tls()
		if err != nil {
			t.Fatal(err)
		}
		conf = conf.Clone()
		conf.ServerName = "redis"
		raw, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if err := tls.Client(raw, conf).HandshakeContext(t.Context()); (err == nil) != c.accepted {
			t.Errorf("%s: got %v; want the server accepted: %t", name, err, c.accepted)
		}
		raw.Close()
	}
}
