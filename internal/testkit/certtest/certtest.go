// Package certtest signs certificates for tests.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a certificate authority. PEM is Cert in PEM.
type Authority struct {
	Cert *x509.Certificate
	PEM  []byte
	key  *ecdsa.PrivateKey
}

// New returns an Authority whose certificate is valid for a day.
func New(tb testing.TB) *Authority {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return &Authority{cert, encode("CERTIFICATE", der), key}
}

func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Cert)
	return pool
}

// Issue returns a certificate and its key, both as PEM. The certificate is for servers and clients, for 127.0.0.1 and
// for names; the first name is also its common name.
func (a *Authority) Issue(tb testing.TB, serial int64, names ...string) (cert, key []byte) {
	tb.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if len(names) > 0 {
		template.Subject.CommonName = names[0]
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.Cert, &private.PublicKey, a.key)
	if err != nil {
		tb.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		tb.Fatal(err)
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", pkcs8)
}

// Secret writes the files of a Kubernetes secret of type tls into folder: tls.crt, tls.key and ca.crt.
func (a *Authority) Secret(tb testing.TB, folder string, serial int64, names ...string) {
	tb.Helper()
	cert, key := a.Issue(tb, serial, names...)
	for name, data := range map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": a.PEM} {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o644); err != nil { //nolint:gosec // Kubernetes mounts secrets with this mode, and the key is useless after the test
			tb.Fatal(err)
		}
	}
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
