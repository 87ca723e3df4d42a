package server

import (
	"crypto/tls"
	"io"
	"log"
	"net/http/httptest"
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
	writeFile(t, f.Cert, cert)
	writeFile(t, f.Key, key)
	writeFile(t, f.ClientCA, a.PEM)
	return f
}

// serial opens a new connection and returns the serial number of the server's certificate, which ca has signed. The
// client presents a certificate that the authority by has signed, or none if by is nil.
func (x *instance) serial(t *testing.T, ca, by *certtest.Authority) (seen int64, err error) {
	t.Helper()
	clientTLS := &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1"}
	if by != nil {
		pair, err := tls.X509KeyPair(by.Issue(t, 99))
		if err != nil {
			t.Fatal(err)
		}
		clientTLS.Certificates = []tls.Certificate{pair}
	}
	clientTLS.VerifyConnection = func(s tls.ConnectionState) error {
		seen = s.PeerCertificates[0].SerialNumber.Int64()
		return nil
	}
	conn := dial(t, x.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(clientTLS)))
	defer conn.Close()
	_, err = rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("d", "k=v"))
	return seen, err
}

func TestTLSFilesAreReadAgain(t *testing.T) {
	ca, otherCA := certtest.New(t), certtest.New(t)
	files := filesOf(t, ca)
	x := start(t, small, func(c *Config) { c.TLS = files })

	if n, err := x.serial(t, ca, ca); err != nil || n != 1 {
		t.Fatalf("got %d, %v; want no error and 1", n, err)
	}
	for name, by := range map[string]*certtest.Authority{"no certificate": nil, "of another CA": otherCA} {
		if _, err := x.serial(t, ca, by); err == nil {
			t.Errorf("%s: the client was accepted; want an error", name)
		}
	}
	cert, key := ca.Issue(t, 2)
	writeFile(t, files.Cert, cert) // a new certificate without its key, as if the files were only half written
	if n, err := x.serial(t, ca, ca); err != nil || n != 1 {
		t.Errorf("half written: %d, %v; want no error and 1", n, err)
	}
	info, err := os.Stat(files.Key)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, files.Key, key)
	if err := os.Chtimes(files.Key, info.ModTime(), info.ModTime()); err != nil { // as if only its permissions had changed
		t.Fatal(err)
	}
	if n, err := x.serial(t, ca, ca); err != nil || n != 2 {
		t.Errorf("got %d, %v; want no error and 2", n, err)
	}
	writeFile(t, files.ClientCA, otherCA.PEM)
	if n, err := x.serial(t, ca, otherCA); err != nil || n != 2 {
		t.Errorf("got %d, %v; want no error and 2", n, err)
	}
	if x.logs.FilterMessageSnippet("the previous ones stay in use").Len() != 1 {
		t.Errorf("%d lines in the log about files that cannot be used; want 1", x.logs.FilterMessageSnippet("the previous ones stay in use").Len())
	}
	writeFile(t, files.Key, "")
	if err := run(t, Config{Paths: []string{x.file}, GRPC: "127.0.0.1:0", TLS: files}); err == nil {
		t.Error("Run with an empty key file: no error; want one")
	}
	writeFile(t, files.Key, key)
	writeFile(t, files.ClientCA, "nothing")
	if err := run(t, Config{Paths: []string{x.file}, GRPC: "127.0.0.1:0", TLS: files}); err == nil {
		t.Error("Run with a CA file without a certificate: no error; want one")
	}
}

func TestClientNameIsRequired(t *testing.T) {
	ca := certtest.New(t)
	files := filesOf(t, ca)
	for name, accepted := range map[string]bool{"127.0.0.1": true, "envoy": false} {
		files.ClientName = name
		if _, err := start(t, small, func(c *Config) { c.TLS = files }).serial(t, ca, ca); (err == nil) != accepted {
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
	redis := httptest.NewUnstartedServer(nil) // any server with TLS
	redis.TLS, redis.Config.ErrorLog = &tls.Config{Certificates: []tls.Certificate{pair}}, log.New(io.Discard, "", 0)
	redis.StartTLS()
	defer redis.Close()
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
		if err := tls.Client(connect(t, redis.Listener.Addr()), conf).HandshakeContext(t.Context()); (err == nil) != c.accepted {
			t.Errorf("%s: got %v; want the server accepted: %t", name, err, c.accepted)
		}
	}
}
