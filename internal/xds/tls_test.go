package xds

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/rlsidecar/rlsidecar/internal/config"
)

// authority signs certificates.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{file: filepath.Join(t.TempDir(), "ca.pem")}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, _ = x509.ParseCertificate(der)
	write(t, a.file, "CERTIFICATE", der)
	return a
}

// issue writes a certificate for name, and its key.
func (a *authority) issue(t *testing.T, name, certFile, keyFile string) {
	t.Helper()
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, certFile, "CERTIFICATE", der)
	write(t, keyFile, "PRIVATE KEY", private)
}

func write(t *testing.T, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestTLS: both sides show certificates, and that of the client is read again for each connection.
func TestTLS(t *testing.T) {
	a := newAuthority(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	a.issue(t, "plane.test", file("server.pem"), file("server.key"))
	a.issue(t, "client-1", file("client.pem"), file("client.key"))
	pair, err := tls.LoadX509KeyPair(file("server.pem"), file("server.key"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	seen := make(chan string, 100)
	newServer := func(address string) *plane {
		return newPlane(t, address,
			grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert})),
			grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				p, _ := peer.FromContext(s.Context())
				seen <- p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].Subject.CommonName
				return next(srv, s)
			}))
	}
	p := newServer("127.0.0.1:0")
	files := &TLS{CA: a.file, Cert: file("client.pem"), Key: file("client.key"), ServerName: "plane.test"}
	uses := follow(t, Config{Server: p.address, TLS: files})
	p.set(t, "1", domain("a", "x"))
	receive(t, "a configuration", uses)
	if got := receive(t, "a client", seen); got != "client-1" {
		t.Errorf("%s", got)
	}
	p.stop()
	a.issue(t, "client-2", file("client.pem"), file("client.key"))
	p = newServer(p.address)
	if got := receive(t, "a client", seen); got != "client-2" {
		t.Errorf("%s", got)
	}

	wrong := *files
	wrong.ServerName = "other.test"
	client, err := New(Config{Server: p.address, TLS: &wrong})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.stream(t.Context(), func([]config.Message, config.Problems) error { return nil }); err == nil {
		t.Error("a server of another name was trusted")
	}
}

func TestTLSFilesThatCannotBeUsed(t *testing.T) {
	a := newAuthority(t)
	for name, files := range map[string]TLS{
		"no key":           {Cert: a.file},
		"no certificate":   {Key: a.file},
		"no CA":            {CA: filepath.Join(t.TempDir(), "none")},
		"nothing in it":    {CA: os.DevNull},
		"key of no use":    {Cert: a.file, Key: os.DevNull},
		"certificate gone": {Cert: filepath.Join(t.TempDir(), "none"), Key: a.file},
	} {
		if _, err := New(Config{Server: "localhost:1", TLS: &files}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
