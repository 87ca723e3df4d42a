package xds

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/testkit/certtest"
)

func issue(t *testing.T, a *certtest.Authority, name, certFile, keyFile string) {
	t.Helper()
	cert, key := a.Issue(t, 2, name)
	write(t, certFile, cert)
	write(t, keyFile, key)
}

func write(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// The client must read its certificate again for each connection.
func TestTLS(t *testing.T) {
	a := certtest.New(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	write(t, file("ca.pem"), a.PEM)
	issue(t, a, "plane.test", file("server.pem"), file("server.key"))
	issue(t, a, "client-1", file("client.pem"), file("client.key"))
	pair, err := tls.LoadX509KeyPair(file("server.pem"), file("server.key"))
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan string, 100)
	newServer := func(address string) *plane {
		return newPlane(t, address,
			grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert})),
			grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				p, _ := peer.FromContext(s.Context())
				seen <- p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].Subject.CommonName
				return next(srv, s)
			}))
	}
	p := newServer("")
	files := &TLS{CA: file("ca.pem"), Cert: file("client.pem"), Key: file("client.key"), ServerName: "plane.test"}
	uses := follow(t, Config{Server: p.Address, TLS: files})
	p.set(t, "1", domain("a", "x"))
	receive(t, "a configuration", uses)
	if got := receive(t, "a client", seen); got != "client-1" {
		t.Errorf("got %s; want client-1", got)
	}
	p.Stop()
	issue(t, a, "client-2", file("client.pem"), file("client.key"))
	p = newServer(p.Address)
	if got := receive(t, "a client", seen); got != "client-2" {
		t.Errorf("got %s; want client-2", got)
	}

	wrong := *files
	wrong.ServerName = "other.test"
	client, err := New(Config{Server: p.Address, TLS: &wrong})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.stream(t.Context(), func([]config.Message, config.Problems) error { return nil }); err == nil {
		t.Error("the client trusted a server with another name; want an error")
	}
}

func TestTLSFilesThatCannotBeUsed(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca.pem")
	write(t, ca, certtest.New(t).PEM)
	for name, files := range map[string]TLS{
		"no key":           {Cert: ca},
		"no certificate":   {Key: ca},
		"no CA":            {CA: filepath.Join(t.TempDir(), "none")},
		"nothing in it":    {CA: os.DevNull},
		"key of no use":    {Cert: ca, Key: os.DevNull},
		"certificate gone": {Cert: filepath.Join(t.TempDir(), "none"), Key: ca},
	} {
		if _, err := New(Config{Server: "localhost:1", TLS: &files}); err == nil {
			t.Errorf("%s: got no error from New; want one", name)
		}
	}
}
