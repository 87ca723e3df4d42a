// Package xds takes the configuration from a control plane: RateLimitConfig resources over ADS, state
// of the world. Every response is the whole configuration. It is acknowledged once it is in use; one
// with a mistake is refused, with the mistakes, and the one before it stays in use. So it does while
// the control plane is away.
package xds

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/rlsidecar/rlsidecar/internal/config"
)

// TypeURL is the type of the resources.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// Defaults of Config.
const (
	DefaultMaxMessage = 16 << 20
	DefaultMinBackoff = time.Second
	DefaultMaxBackoff = 30 * time.Second
)

const (
	// A server that is not written to may vanish unnoticed. More pings than one in 5 minutes are
	// answered with the end of the connection by a server that was not told to expect them; TCP's own
	// need nobody's consent and notice in a minute what they can see: not a server behind a proxy.
	pingEvery   = 5 * time.Minute
	pingTimeout = 20 * time.Second
	tcpIdle     = 30 * time.Second
	tcpInterval = 10 * time.Second
	tcpProbes   = 3
	// maxRefusal bounds what is said of a refused configuration; all of it is in our own log.
	maxRefusal = 4 << 10
)

// Config is what a Client needs to know.
type Config struct {
	// Server is host:port, or another gRPC target.
	Server string
	// NodeID and NodeMetadata tell the server which configuration is asked for.
	NodeID       string
	NodeMetadata map[string]string
	// Headers go with the stream. See CheckHeader.
	Headers map[string]string
	// TLS is nil for a connection that is not encrypted.
	TLS *TLS
	// MaxMessage bounds a response, in bytes; 0: DefaultMaxMessage.
	MaxMessage int
	// MinBackoff and MaxBackoff bound the pause before the server is called again: a random part of
	// MinBackoff, then of twice as much and so on, up to MaxBackoff. 0: the defaults.
	MinBackoff, MaxBackoff time.Duration
	// Version of the program.
	Version string
	// Log is told when a stream opens and ends.
	Log *zap.Logger
	// Connected is told the same. May be nil.
	Connected func(bool)
}

// Use puts a whole configuration to use, or says why it cannot be: problems are those found so far.
type Use func(messages []config.Message, problems config.Problems) error

// Client follows a control plane.
type Client struct {
	config Config
	node   *core.Node
}

// New makes a Client. The error is of the configuration, TLS files included.
func New(c Config) (*Client, error) {
	if c.MaxMessage == 0 {
		c.MaxMessage = DefaultMaxMessage
	}
	if c.MinBackoff == 0 {
		c.MinBackoff = DefaultMinBackoff
	}
	if c.MaxBackoff == 0 {
		c.MaxBackoff = DefaultMaxBackoff
	}
	if c.Connected == nil {
		c.Connected = func(bool) {}
	}
	for name, value := range c.Headers {
		if err := CheckHeader(name, value); err != nil {
			return nil, err
		}
	}
	meta := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for key, value := range c.NodeMetadata {
		meta.Fields[key] = structpb.NewStringValue(value)
	}
	client := &Client{config: c, node: &core.Node{
		Id: c.NodeID, Metadata: meta, UserAgentName: "rlsidecar",
		UserAgentVersionType: &core.Node_UserAgentVersion{UserAgentVersion: c.Version},
	}}
	conn, err := client.dial() // it does not connect: it finds what is wrong with the settings
	if err != nil {
		return nil, err
	}
	return client, conn.Close()
}

// CheckHeader says what is wrong with a header: gRPC would fail every stream with it.
func CheckHeader(name, value string) error {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789-_."
	switch lower := strings.ToLower(name); {
	case name == "" || strings.Trim(lower, letters) != "" || strings.ContainsFunc(lower, func(r rune) bool { return !strings.ContainsRune(letters, r) }):
		return fmt.Errorf("%q cannot be the name of a gRPC header; write letters, digits, -, _ and . only", name)
	case strings.HasPrefix(lower, "grpc-"):
		return fmt.Errorf("header %q: names that start with grpc- are gRPC's own", name)
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
		return fmt.Errorf("the value of header %q has a character that is not printable ASCII", name)
	}
	return nil
}

// Run gives use every configuration that the server sends, one after the other, until ctx ends.
func (c *Client) Run(ctx context.Context, use Use) {
	for failures := 0; ; failures++ {
		answered, err := c.stream(ctx, use)
		if ctx.Err() != nil {
			return
		}
		if answered {
			failures = 0
		}
		pause := c.backoff(failures)
		c.config.Log.Warn("no stream from the xDS server; the configuration stays as it is",
			zap.String("server", c.config.Server), zap.Error(err), zap.Duration("again_in", pause))
		sleep(ctx, pause)
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// backoff is how long to wait after failures in a row before the last one. It is a random part of the
// whole, down to nothing, so that a server that comes back is not called by everybody at once.
func (c *Client) backoff(failures int) time.Duration {
	whole := c.config.MaxBackoff
	if failures < 32 && c.config.MinBackoff<<failures < whole {
		whole = max(c.config.MinBackoff<<failures, 1)
	}
	return rand.N(whole)
}

// dial makes a connection, which connects when it is used. There is a new one for each stream, so
// that names are looked up and certificates read again.
func (c *Client) dial() (*grpc.ClientConn, error) {
	transport, err := c.config.TLS.transport()
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: tcpIdle, Interval: tcpInterval, Count: tcpProbes,
	}}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.config.MaxMessage)),
		grpc.WithDisableServiceConfig(), // none may come from DNS
	}
	if !strings.HasPrefix(c.config.Server, "unix") {
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}))
	}
	conn, err := grpc.NewClient(c.config.Server, options...)
	if err != nil {
		return nil, fmt.Errorf("xDS server %q: %w", c.config.Server, err)
	}
	return conn, nil
}

// stream follows one stream to its end. answered tells whether a configuration came, be it a bad one.
func (c *Client) stream(ctx context.Context, use Use) (answered bool, err error) {
	conn, err := c.dial()
	if err != nil {
		return false, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(grpcmetadata.NewOutgoingContext(ctx, grpcmetadata.New(c.config.Headers)))
	defer cancel()
	s, err := discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return false, err
	}
	c.config.Log.Info("stream from the xDS server is open", zap.String("server", c.config.Server), zap.String("node", c.config.NodeID))
	c.config.Connected(true)
	defer c.config.Connected(false)
	// No version, though there may be one from a stream before: a server that has been restarted may
	// count from the start again, and would take what it has for known.
	next := &discovery.DiscoveryRequest{}
	refused, again := "", 0 // the version refused last, and how often it has come again
	for {
		next.TypeUrl, next.Node = TypeURL, c.node
		// An error of Send says no more than that there is one: Recv has it.
		_ = s.Send(next)
		response, err := s.Recv()
		if err != nil {
			return answered, err
		}
		answered = true
		next = answer(response, next.VersionInfo, use)
		switch {
		case next.ErrorDetail == nil:
			refused, again = "", 0
		case response.GetVersionInfo() != refused:
			refused, again = response.GetVersionInfo(), 0
		default:
			// A server that sends what was refused again as soon as it hears of it, as
			// go-control-plane's does, would keep both busy.
			sleep(s.Context(), c.backoff(again))
			again++
		}
	}
}

// answer puts a response to use and acknowledges it, or refuses it and says why. last is the version
// in use before, as far as the server knows.
func answer(r *discovery.DiscoveryResponse, last string, use Use) *discovery.DiscoveryRequest {
	var err error
	if r.GetTypeUrl() == TypeURL {
		err = use(decode(r.GetResources()))
	} else {
		err = errors.New("asked for " + TypeURL)
	}
	if err == nil {
		return &discovery.DiscoveryRequest{VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()}
	}
	text := err.Error()
	if len(text) > maxRefusal {
		text = text[:maxRefusal] + "…"
	}
	return &discovery.DiscoveryRequest{
		VersionInfo: last, ResponseNonce: r.GetNonce(),
		ErrorDetail: &status.Status{Code: int32(codes.InvalidArgument), Message: strings.ToValidUTF8(text, "\ufffd")},
	}
}
