package xds

import (
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rlsidecar/rlsidecar/internal/tlsfiles"
)

// TLS has the names of PEM files, which are read again for each connection.
type TLS struct {
	// CA has the certificate authorities of the server; "" means those of the system.
	CA string
	// Cert and Key are the client's certificate and its key; "" means none.
	Cert, Key string
	// ServerName is the name that the server's certificate must have; "" means the host of Config.Server.
	ServerName string
}

// transport reads the files. If t is nil, the connection is not encrypted.
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
