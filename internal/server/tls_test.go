package server

import (
	"crypto/tls"
	"os"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/rlsidecar/rlsidecar/internal/testkit/certtest"
)

func TestTLSFilesAreReadAgain(t *testing.T) {
	ca, otherCA := certtest.New(t), certtest.New(t)
	files := filesOf(t, ca)
	write := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	x := start(t, small, func(c *Config) { c.TLS = files })

	// serial opens a new connection and returns the serial number of the server's certificate. The client presents a
	// certificate that the authority has signed, or none if the authority is nil.
	serial := func(by *certtest.Authority) (int64, error) {
		t.Helper()
		clientTLS := &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1"}
		if by != nil {
			pair, err := tls.X509KeyPair(by.Issue(t, 99))
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
		t.Fatalf("got %d, %v; want no error and 1", n, err)
	}
	for name, by := range map[string]*certtest.Authority{"no certificate": nil, "of another CA": otherCA} {
		if _, err := serial(by); err == nil {
			t.Errorf("%s: the client was accepted; want an error", name)
		}
	}
	cert, key := ca.Issue(t, 2)
	write(files.Cert, cert) // a new certificate without its key, as if the files were only half written
	if n, err := serial(ca); err != nil || n != 1 {
		t.Errorf("half written: %d, %v; want no error and 1", n, err)
	}
	write(files.Key, key)
	if n, err := serial(ca); err != nil || n != 2 {
		t.Errorf("got %d, %v; want no error and 2", n, err)
	}
	write(files.ClientCA, otherCA.PEM)
	if n, err := serial(otherCA); err != nil || n != 2 {
		t.Errorf("got %d, %v; want no error and 2", n, err)
	}
	if x.logs.FilterMessageSnippet("the previous ones stay in use").Len() != 1 {
		t.Errorf("%d lines in the log about files that cannot be used; want 1", x.logs.FilterMessageSnippet("the previous ones stay in use").Len())
	}
	write(files.Key, nil)
	if err := run(t, Config{Paths: []string{x.file}, GRPC: "127.0.0.1:0", TLS: files}); err == nil {
		t.Error("Run with an empty key file: no error; want one")
	}
	write(files.Key, key)
	write(files.ClientCA, []byte("nothing"))
	if err := run(t, Config{Paths: []string{x.file}, GRPC: "127.0.0.1:0", TLS: files}); err == nil {
		t.Error("Run with a CA file without a certificate: no error; want one")
	}
}
