package redis

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// authority signs certificates for loopback.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = a.issue(t, "ca", true)
	return a
}

// issue makes name.crt and name.key.
func (a *authority) issue(t *testing.T, name string, isCA bool) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: isCA, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := a.cert, a.key
	if isCA {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for kind, block := range map[string]*pem.Block{
		"crt": {Type: "CERTIFICATE", Bytes: der}, "key": {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(a.file(name, kind), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func (a *authority) file(name, kind string) string { return filepath.Join(a.dir, name+"."+kind) }

// TestTLSWithClientCertificateAndUser goes all the way that a careful operator asks for: TLS, a
// certificate of the client's own, and a user that may do no more than limits need.
func TestTLSWithClientCertificateAndUser(t *testing.T) {
	a := newAuthority(t)
	a.issue(t, "server", false)
	a.issue(t, "client", false)
	port := redistest.FreePort(t)
	server := redistest.Start(t, "--tls-port", fmt.Sprint(port), "--tls-auth-clients", "yes",
		"--tls-ca-cert-file", a.file("ca", "crt"), "--tls-cert-file", a.file("server", "crt"), "--tls-key-file", a.file("server", "key"))
	server.Do("ACL", "SETUSER", "rl", "on", ">secret", "~rl:*", "-@all",
		"+evalsha", "+eval", "+mget", "+get", "+psetex", "+llen", "+lindex", "+rpush", "+ltrim", "+del", "+pexpire", "+time", "+ping", "+info", "+hello")
	pair, err := tls.LoadX509KeyPair(a.file("client", "crt"), a.file("client", "key"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	password := filepath.Join(a.dir, "password")
	if err := os.WriteFile(password, []byte("rl:secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := Config{
		URL: fmt.Sprintf("rediss://127.0.0.1:%d", port), Timeout: time.Second, PasswordFile: password,
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{pair}},
	}
	s := open(t, config)
	take := func(s *Store, spec algorithms.Spec) backend.Decision {
		limit, err := algorithms.Compile(spec)
		if err != nil {
			t.Fatal(err)
		}
		var d [1]backend.Decision
		s.Take(t.Context(), []backend.Charge{{Key: []byte{byte(spec.Kind)}, Limit: &limit, Ask: algorithms.Ask{Cost: 1}}}, d[:])
		return d[0]
	}
	for kind := algorithms.TokenBucket; kind <= algorithms.LeakyBucket; kind++ {
		if d := take(s, algorithms.Spec{Kind: kind, Rate: 5, Period: algorithms.Second}); d.Err != nil || !d.Allowed {
			t.Errorf("%s: %+v", kind, d)
		}
	}
	for _, f := range s.Examine(t.Context()) {
		if f.Severity != Fine {
			t.Errorf("%+v", f)
		}
	}
	config.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	stranger, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := stranger.Ping(ctx); err == nil {
		t.Error("without a certificate it is let in")
	}
}
