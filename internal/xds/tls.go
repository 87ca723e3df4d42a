package xds

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// TLS are PEM files, read again for every connection.
type TLS struct {
	// CA of the server; "": those of the system.
	CA string
	// Cert and Key are shown to the server; "": none.
	Cert, Key string
	// ServerName is what the server's certificate must be for; "": the name it is called by.
	ServerName string
}

// transport reads the files; without TLS the transport is not encrypted.
func (t *TLS) transport() (credentials.TransportCredentials, error) {
	if t == nil {
		return insecure.NewCredentials(), nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if (t.Cert == "") != (t.Key == "") {
		return nil, errors.New("a client certificate for the xDS server needs both a certificate and its key")
	}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("CA of the xDS server: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA of the xDS server: %s holds no certificate", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("client certificate for the xDS server: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(c), nil
}
