package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/reference/refenv"
	"github.com/rlsidecar/rlsidecar/internal/server"
)

// xdsFlags say which control plane brings the configuration.
type xdsFlags struct {
	XDSServer          string        `name:"xds-server" placeholder:"HOST:PORT" env:"RLSIDECAR_XDS_SERVER" help:"Take the configuration from this control plane, over ADS, instead of from files."`
	XDSNodeID          string        `name:"xds-node-id" default:"default" placeholder:"ID" env:"RLSIDECAR_XDS_NODE_ID" help:"What it knows this process by (${default})."`
	XDSNodeMetadata    []string      `name:"xds-node-metadata" placeholder:"K=V" env:"RLSIDECAR_XDS_NODE_METADATA" help:"Sent to it with the node ID; several with commas."`
	XDSHeader          []string      `name:"xds-header" placeholder:"K:V" env:"RLSIDECAR_XDS_HEADER" help:"Headers of the stream; several with commas."`
	XDSTLS             bool          `name:"xds-tls" env:"RLSIDECAR_XDS_TLS" help:"Ask it by TLS."`
	XDSTLSCA           string        `name:"xds-tls-ca" placeholder:"FILE" env:"RLSIDECAR_XDS_TLS_CA" help:"Its CA; the system's where none is given. These files are read again for every connection."`
	XDSTLSCert         string        `name:"xds-tls-cert" placeholder:"FILE" env:"RLSIDECAR_XDS_TLS_CERT" help:"Client certificate."`
	XDSTLSKey          string        `name:"xds-tls-key" placeholder:"FILE" env:"RLSIDECAR_XDS_TLS_KEY" help:"Its key."`
	XDSTLSServerName   string        `name:"xds-tls-server-name" placeholder:"NAME" env:"RLSIDECAR_XDS_TLS_SERVER_NAME" help:"Name in its certificate, where that is not the host asked."`
	XDSMaxMessage      int           `name:"xds-max-message" default:"0" placeholder:"BYTES" env:"RLSIDECAR_XDS_MAX_MESSAGE" help:"Largest configuration; 0: 16 MiB."`
	XDSBackoff         time.Duration `name:"xds-backoff" default:"1s" env:"RLSIDECAR_XDS_BACKOFF" help:"Longest pause before it is asked again after a failure; twice as long after each further one (${default})."`
	XDSMaxBackoff      time.Duration `name:"xds-max-backoff" default:"30s" env:"RLSIDECAR_XDS_MAX_BACKOFF" help:"Up to this (${default})."`
	StartWithoutConfig bool          `name:"start-without-config" env:"RLSIDECAR_START_WITHOUT_CONFIG" help:"Start before it has sent a configuration: on_backend_failure answers until then, and readiness fails."`
}

// xds is what the flags say. The error is of a pair.
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

// pairs splits each of list in a name and a value.
func pairs(flag, separator string, list []string) (map[string]string, error) {
	m := map[string]string{}
	for _, pair := range list {
		name, value, ok := strings.Cut(pair, separator)
		if name = strings.TrimSpace(name); !ok || name == "" {
			// Not the pair itself: it may be a secret.
			return nil, fmt.Errorf("%s must be NAME%sVALUE, with commas between several", flag, separator)
		}
		m[name] = strings.TrimSpace(value)
	}
	return m, nil
}

// controlPlane is the one that the flags name or, where they name no files either, the reference
// server's variables. It is the zero XDS where files are named.
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

// fromReference is what the reference server's variables say. Without TLS it does not look at the
// files for it, and neither is it asked to here.
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
