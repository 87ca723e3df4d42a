// Package tlsfiles creates TLS configurations from PEM files.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// Pool returns the certificates in a file, which must have at least one.
func Pool(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", file)
	}
	return pool, nil
}

// Client returns the configuration of a TLS client. The client trusts the certificate authorities in the file
// ca, or those of the system if ca is "". If a server requests a certificate, the client presents the one in
// the files cert and key, which it reads again for each connection. If both are "", it has no certificate. It is an
// error if only one of them is "". Each error contains purpose, a description of the connection.
func Client(purpose, ca, cert, key string) (*tls.Config, error) {
	if (cert == "") != (key == "") {
		return nil, fmt.Errorf("a client certificate for %s needs both a certificate and its key", purpose)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		var err error
		if c.RootCAs, err = Pool(ca); err != nil {
			return nil, fmt.Errorf("CA of %s: %w", purpose, err)
		}
	}
	if cert == "" {
		return c, nil
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("client certificate for %s: %w", purpose, err)
		}
		return &pair, nil
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	return c, nil
}
