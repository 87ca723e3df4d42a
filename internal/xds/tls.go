package xds

import (
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rlsidecar/rlsidecar/internal/tlsfiles"
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
	c, err := tlsfiles.Client("the xDS server", t.CA, t.Cert, t.Key)
	if err != nil {
		return nil, err
	}
	c.ServerName = t.ServerName
	return credentials.NewTLS(c), nil
}
