package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/reference/refenv"
	"github.com/rlsidecar/rlsidecar/internal/server"
)

type xdsFlags struct {
	XDSServer          string        `name:"xds-server" placeholder:"HOST:PORT" env:"RLSIDECAR_XDS_SERVER" help:"Get the configuration from this control plane, over ADS, instead of from files."`
	XDSNodeID          string        `name:"xds-node-id" default:"default" placeholder:"ID" env:"RLSIDECAR_XDS_NODE_ID" help:"Node ID that identifies this process to the control plane. Without the flag, it is the word ${default}."`
	XDSNodeMetadata    []string      `name:"xds-node-metadata" placeholder:"K=V" env:"RLSIDECAR_XDS_NODE_METADATA" help:"Node metadata that is sent to the control plane; separate several by commas."`
	XDSHeader          []string      `name:"xds-header" placeholder:"K:V" env:"RLSIDECAR_XDS_HEADER" help:"Headers of the stream to the control plane; separate several by commas."`
	XDSTLS             bool          `name:"xds-tls" env:"RLSIDECAR_XDS_TLS" help:"Connect to the control plane over TLS."`
	XDSTLSCA           string        `name:"xds-tls-ca" placeholder:"FILE" env:"RLSIDECAR_XDS_TLS_CA" help:"CA of the control plane. Default: the system's. The TLS files are read again for every connection."`
	XDSTLSCert         string        `name:"xds-tls-cert" placeholder:"FILE" env:"RLSIDECAR_XDS_TLS_CERT" help:"Client certificate for the control plane."`
	XDSTLSKey          string        `name:"xds-tls-key" placeholder:"FILE" env:"RLSIDECAR_XDS_TLS_KEY" help:"Private key of the client certificate."`
	XDSTLSServerName   string        `name:"xds-tls-server-name" placeholder:"NAME" env:"RLSIDECAR_XDS_TLS_SERVER_NAME" help:"Name in the control plane's certificate, if it is not the host of --xds-server."`
	XDSMaxMessage      int           `name:"xds-max-message" default:"0" placeholder:"BYTES" env:"RLSIDECAR_XDS_MAX_MESSAGE" help:"Size of the largest configuration; 0 means 16 MiB."`
	XDSBackoff         time.Duration `name:"xds-backoff" default:"1s" env:"RLSIDECAR_XDS_BACKOFF" help:"Longest pause after the first failure to reach the control plane. It doubles with each further failure, up to --xds-max-backoff (${default})."`
	XDSMaxBackoff      time.Duration `name:"xds-max-backoff" default:"30s" env:"RLSIDECAR_XDS_MAX_BACKOFF" help:"Longest pause between two attempts to reach the control plane (${default})."`
	StartWithoutConfig bool          `name:"start-without-config" env:"RLSIDECAR_START_WITHOUT_CONFIG" help:"Start before the control plane has sent a configuration. Until then, on_backend_failure decides and the sidecar is not ready."`
}

func (f xdsFlags) xds() (x server.XDS, err error) {
	x = server.XDS{
		Server: f.XDSServer, NodeID: f.XDSNodeID,
		TLS: f.XDSTLS, CA: f.XDSTLSCA, Cert: f.XDSTLSCert, Key: f.XDSTLSKey, ServerName: f.XDSTLSServerName,
		MaxMessage: f.XDSMaxMessage, MinBackoff: f.XDSBackoff, MaxBackoff: f.XDSMaxBackoff,
		StartWithout: f.StartWithoutConfig,
	}
	if x.NodeMetadata, err = pairs("--xds-node-metadata", "=", f.XDSNodeMetadata); err != nil {
		return x, err
	}
	x.Headers, err = pairs("--xds-header", ":", f.XDSHeader)
	return x, err
}

func pairs(flag, separator string, list []string) (map[string]string, error) {
	m := map[string]string{}
	for _, pair := range list {
		name, value, ok := strings.Cut(pair, separator)
		if name = strings.TrimSpace(name); !ok || name == "" {
			// The message does not show the pair, which may be a secret.
			return nil, fmt.Errorf("%s must be NAME%sVALUE, with commas between several", flag, separator)
		}
		m[name] = strings.TrimSpace(value)
	}
	return m, nil
}

// controlPlane returns the control plane that the flags name. If the flags name no files either, it uses the
// reference server's variables. It returns the zero XDS if the configuration comes from files.
func (c *serveCmd) controlPlane(r reference) (server.XDS, error) {
	switch {
	case c.XDSServer != "":
		return c.xds()
	case len(c.Config) > 0:
		return server.XDS{}, nil
	case r.XDS != nil:
		return fromReference(r.XDS), nil
	default:
		return server.XDS{}, errors.New("no configuration: give --config PATH or --xds-server HOST:PORT, or set RUNTIME_ROOT")
	}
}

// fromReference converts the reference server's variables. Without TLS it ignores the TLS files, as the
// reference server does.
func fromReference(r *refenv.XDS) server.XDS {
	x := server.XDS{
		Server: r.Server, NodeID: r.NodeID, NodeMetadata: r.NodeMetadata, Headers: r.Headers, TLS: r.UseTLS,
		MaxMessage: r.MaxMessageSize, MinBackoff: r.BackoffInitial, MaxBackoff: r.BackoffMax, StartWithout: r.StartWithoutInitial,
	}
	if x.TLS {
		x.CA, x.Cert, x.Key, x.ServerName = r.CA, r.Cert, r.Key, r.ServerName
	}
	return x
}
