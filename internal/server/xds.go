package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/xds"
)

// XDS describes the control plane that provides the configuration over ADS. Without a Server, files provide it.
type XDS struct {
	Server       string        `name:"xds-server" setting:"flag" placeholder:"HOST:PORT" help:"Get the configuration from this control plane, over ADS, instead of from files."`
	NodeID       string        `name:"xds-node-id" setting:"flag" default:"default" placeholder:"ID" help:"Node ID that identifies this process to the control plane. Without the flag, it is the word ${default}."`
	TLS          bool          `name:"xds-tls" setting:"flag" help:"Connect to the control plane over TLS."`
	CA           string        `name:"xds-tls-ca" setting:"flag" placeholder:"FILE" help:"CA of the control plane. Default: the system's. The TLS files are read again for every connection."`
	Cert         string        `name:"xds-tls-cert" setting:"flag" placeholder:"FILE" help:"Client certificate for the control plane."`
	Key          string        `name:"xds-tls-key" setting:"flag" placeholder:"FILE" help:"Private key of the client certificate."`
	ServerName   string        `name:"xds-tls-server-name" setting:"variable" placeholder:"NAME" help:"Name in the control plane's certificate, if it is not the host of --xds-server."`
	Overlay      string        `name:"xds-overlay" setting:"variable" placeholder:"FILE" help:"File that makes limits of the control plane settle. It is read at the start."`
	MaxMessage   int           `name:"xds-max-message" setting:"variable" placeholder:"BYTES" help:"Size of the largest configuration; 0 means 16 MiB."`
	MinBackoff   time.Duration `name:"xds-backoff" setting:"variable" default:"1s" help:"Longest pause after the first failure to reach the control plane. It doubles with each further failure, up to RLSIDECAR_XDS_MAX_BACKOFF."`
	MaxBackoff   time.Duration `name:"xds-max-backoff" setting:"variable" default:"30s" help:"Longest pause between two attempts to reach the control plane."`
	StartWithout bool          `name:"start-without-config" setting:"flag" help:"Start before the control plane has sent a configuration. Until then, on_backend_failure decides and the sidecar is not ready."`
	// NodeMetadata identifies this process to the control plane, too. Headers are sent when the stream opens.
	NodeMetadata map[string]string `kong:"-"`
	Headers      map[string]string `kong:"-"`
}

// firstWarning is the interval of the warning that there is no configuration yet. A control plane sends
// nothing to a node that it does not know.
const firstWarning = 15 * time.Second

func (x *XDS) check() error {
	switch {
	case x.Server == "":
		return nil
	case !x.TLS && (x.CA != "" || x.Cert != "" || x.Key != "" || x.ServerName != ""):
		return errors.New("the --xds-tls-… files have no effect without --xds-tls, because the stream is not encrypted; add --xds-tls, or remove them")
	case (x.Cert == "") != (x.Key == ""):
		return errors.New("a client certificate for the xDS server needs both --xds-tls-cert and --xds-tls-key")
	case x.MaxMessage < 0 || x.MinBackoff < 0 || x.MaxBackoff < 0:
		return errors.New("RLSIDECAR_XDS_MAX_MESSAGE, RLSIDECAR_XDS_BACKOFF and RLSIDECAR_XDS_MAX_BACKOFF must not be negative")
	}
	for name, value := range x.Headers {
		if err := xds.CheckHeader(name, value); err != nil {
			return fmt.Errorf("xDS: %w", err)
		}
	}
	return nil
}

func (s *server) configureXDS(ctx, background context.Context, wg *sync.WaitGroup) error {
	x := s.config.XDS
	if err := s.readOverlay(x.Overlay); err != nil {
		return err
	}
	c := xds.Config{
		Server: x.Server, NodeID: x.NodeID, NodeMetadata: x.NodeMetadata, Headers: x.Headers,
		MaxMessage: x.MaxMessage, MaxLimits: s.config.Defaults.MaxLimits, MinBackoff: x.MinBackoff, MaxBackoff: x.MaxBackoff,
		Version: s.config.Version, Log: s.log, Connected: s.reportControlPlane(x.Server, s.metrics.WatchControlPlane()),
	}
	if x.TLS {
		c.TLS = &xds.TLS{CA: x.CA, Cert: x.Cert, Key: x.Key, ServerName: x.ServerName}
	}
	client, err := xds.New(c)
	if err != nil {
		return err
	}
	wg.Go(func() { client.Run(background, s.useMessages) })
	if x.StartWithout {
		wg.Go(func() { s.waitForFirst(background) })
	} else {
		s.waitForFirst(ctx)
	}
	return nil
}

// readOverlay returns an error if the file has a mistake. Its warnings are those of limits that have not been sent yet.
func (s *server) readOverlay(name string) error {
	if name == "" {
		return nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("RLSIDECAR_XDS_OVERLAY: %w", err)
	}
	s.config.Defaults.Overlay = &config.File{Name: name, Data: text}
	if _, problems := config.CompileMessages(nil, s.config.Defaults); problems.Bad() {
		return problems
	}
	return nil
}

func (s *server) waitForFirst(ctx context.Context) {
	for {
		select {
		case <-s.configured:
			return
		case <-ctx.Done():
			return
		case <-time.After(firstWarning):
			s.log.Warn("there is no configuration yet: the xDS server has not sent a valid one; check that it has one for this node (--xds-node-id)",
				zap.String("server", s.config.XDS.Server), zap.String("node", s.config.XDS.NodeID))
		}
	}
}

// useMessages puts a complete configuration in use. The error lists all its mistakes.
func (s *server) useMessages(messages []config.Message, problems config.Problems) error {
	start := time.Now()
	snapshot, more := config.CompileMessages(messages, s.config.Defaults)
	if problems = append(problems, more...); problems.Bad() {
		snapshot = nil
	}
	s.apply(snapshot, problems, []string{"xds:" + s.config.XDS.Server}, start)
	if problems.Bad() {
		s.refused(problems)
		return slices.DeleteFunc(problems, func(p config.Problem) bool { return p.Warning })
	}
	if len(messages) == 0 {
		s.log.Error("the configuration from the xDS server is empty: NO REQUEST IS LIMITED; check the limits of the control plane for this node (--xds-node-id)", zap.String("server", s.config.XDS.Server))
	}
	return nil
}
