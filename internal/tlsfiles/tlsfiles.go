// Package tlsfiles creates TLS configurations from PEM files.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// Pool returns the certificates in a file.
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
// ca, or those of the system if ca is "". It presents the certificate in the file cert, which is read again
// for each connection, or no certificate if cert is "". Errors contain what, which describes the purpose of
// the connection.
func Client(what, ca, cert, key string) (*tls.Config, error) {
	if (cert == "") != (key == "") {
		return nil, fmt.Errorf("a client certificate for %s needs both a certificate and its key", what)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		var err error
		if c.RootCAs, err = Pool(ca); err != nil {
			return nil, fmt.Errorf("CA of %s: %w", what, err)
		}
	}
	if cert == "" {
		return c, nil
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("client certificate for %s: %w", what, err)
		}
		return &pair, nil
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	return c, nil
}
