package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// authority signs certificates.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{key, cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue makes a certificate for 127.0.0.1 with a serial number.
func (a *authority) issue(t *testing.T, serial int64) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, &private.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

func TestTLSFilesAreReadAgain(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	folder := t.TempDir()
	files := TLSFiles{Cert: filepath.Join(folder, "cert"), Key: filepath.Join(folder, "key"), ClientCA: filepath.Join(folder, "ca")}
	write := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, key := ca.issue(t, 1)
	write(files.Cert, cert)
	write(files.Key, key)
	write(files.ClientCA, ca.pem)
	x := start(t, small, func(c *Config) { c.TLS = files })

	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	// serial asks over a new connection, and returns the serial number of the server's certificate.
	serial := func(by *authority) (int64, error) {
		t.Helper()
		clientTLS := &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}
		if by != nil {
			pair, err := tls.X509KeyPair(by.issue(t, 99))
			if err != nil {
				t.Fatal(err)
			}
			clientTLS.Certificates = []tls.Certificate{pair}
		}
		var seen int64
		clientTLS.VerifyConnection = func(s tls.ConnectionState) error {
			seen = s.PeerCertificates[0].SerialNumber.Int64()
			return nil
		}
		conn := dial(t, x.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(clientTLS)))
		defer conn.Close()
		_, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("d", descriptor("k=v")))
		return seen, err
	}
	if n, err := serial(ca); err != nil || n != 1 {
		t.Fatalf("%d, %v", n, err)
	}
	for name, by := range map[string]*authority{"no certificate": nil, "of another CA": stranger} {
		if _, err := serial(by); err == nil {
			t.Errorf("%s: let in", name)
		}
	}
	cert, key = ca.issue(t, 2)
	write(files.Cert, cert) // does not go with the old key
	if n, err := serial(ca); err != nil || n != 1 {
		t.Errorf("half written: %d, %v", n, err)
	}
	write(files.Key, key)
	if n, err := serial(ca); err != nil || n != 2 {
		t.Errorf("%d, %v", n, err)
	}
	write(files.ClientCA, stranger.pem)
	if n, err := serial(stranger); err != nil || n != 2 {
		t.Errorf("%d, %v", n, err)
	}
	if x.logs.FilterMessageSnippet("TLS files cannot be used").Len() != 1 {
		t.Error("not logged once")
	}
	write(files.Key, nil)
	if err := run(t, Config{Paths: []string{x.file}, GRPC: "127.0.0.1:0", TLS: files}); err == nil {
		t.Error("started without a key")
	}
	write(files.Key, key)
	write(files.ClientCA, []byte("nothing"))
	if err := run(t, Config{Paths: []string{x.file}, GRPC: "127.0.0.1:0", TLS: files}); err == nil {
		t.Error("started without a CA")
	}
}
