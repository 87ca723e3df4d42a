package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/xds"
)

// XDS says which control plane brings the configuration, over ADS.
type XDS struct {
	// Server is host:port; "": the configuration comes from files.
	Server string
	// NodeID and NodeMetadata are what it knows this process by.
	NodeID       string
	NodeMetadata map[string]string
	// Headers go with the stream.
	Headers map[string]string
	// TLS says to use it. CA, Cert and Key are PEM files, read again for every connection: whom to
	// trust ("": the system's), and what to show, if anything. ServerName is what the server's
	// certificate must be for; "": the host of Server.
	TLS                       bool
	CA, Cert, Key, ServerName string
	// MaxMessage bounds a configuration, in bytes; 0: xds.DefaultMaxMessage.
	MaxMessage int
	// MinBackoff and MaxBackoff bound the pauses between attempts; 0: the defaults of package xds.
	MinBackoff, MaxBackoff time.Duration
	// StartWithout opens the doors before the first configuration: until it comes, requests are
	// answered by the default of on_backend_failure, and the server is not ready.
	StartWithout bool
}

// firstWarning is how often it is said that there is no configuration yet: a control plane answers
// only nodes that it knows, and says nothing to others.
const firstWarning = 15 * time.Second

// check returns what is wrong with x itself.
func (x *XDS) check() error {
	switch {
	case x.Server == "":
		return nil
	case !x.TLS && (x.CA != "" || x.Cert != "" || x.Key != "" || x.ServerName != ""):
		return errors.New("the files of the xDS server's TLS mean nothing without --xds-tls: the stream would not be encrypted; add it, or remove them")
	case (x.Cert == "") != (x.Key == ""):
		return errors.New("a client certificate for the xDS server needs both --xds-tls-cert and --xds-tls-key")
	case x.MaxMessage < 0 || x.MinBackoff < 0 || x.MaxBackoff < 0:
		return errors.New("sizes and pauses of the xDS stream must not be negative")
	}
	for name, value := range x.Headers {
		if err := xds.CheckHeader(name, value); err != nil {
			return fmt.Errorf("xDS: %w", err)
		}
	}
	return nil
}

// configureXDS is configure for a control plane.
func (s *server) configureXDS(ctx, background context.Context, wg *sync.WaitGroup) error {
	x := s.config.XDS
	c := xds.Config{
		Server: x.Server, NodeID: x.NodeID, NodeMetadata: x.NodeMetadata, Headers: x.Headers,
		MaxMessage: x.MaxMessage, MinBackoff: x.MinBackoff, MaxBackoff: x.MaxBackoff,
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

// waitForFirst waits for the first configuration, until ctx ends, and says so now and then.
func (s *server) waitForFirst(ctx context.Context) {
	again := time.NewTicker(firstWarning)
	defer again.Stop()
	for {
		select {
		case <-s.configured:
			return
		case <-ctx.Done():
			return
		case <-again.C:
			s.log.Warn("there is no configuration yet: the xDS server has not sent one that can be used; does it know this node?",
				zap.String("server", s.config.XDS.Server), zap.String("node", s.config.XDS.NodeID))
		}
	}
}

// useMessages puts a whole configuration to use; the error is all mistakes in it. One that is isolated
// is in use but for the domains with a mistake, and refused all the same: so the protocol has it.
func (s *server) useMessages(messages []config.Message, problems config.Problems) error {
	start := time.Now()
	var snapshot *limiter.Snapshot
	var stale []string
	if s.keeper != nil {
		snapshot, problems, stale = s.keeper.CompileMessages(messages, problems)
	} else {
		var more config.Problems
		snapshot, more = config.CompileMessages(messages, s.config.Defaults)
		if problems = append(problems, more...); problems.Bad() {
			snapshot = nil
		}
	}
	s.take(snapshot, problems, stale, []string{"xds:" + s.config.XDS.Server}, start)
	if problems.Bad() {
		s.refused(problems)
		return slices.DeleteFunc(problems, func(p config.Problem) bool { return p.Warning })
	}
	if len(messages) == 0 {
		s.log.Error("the configuration from the xDS server is empty: NOTHING IS LIMITED", zap.String("server", s.config.XDS.Server))
	}
	return nil
}
