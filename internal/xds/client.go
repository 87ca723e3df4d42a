// Package xds receives the configuration from a control plane: RateLimitConfig resources over ADS, in the
// state-of-the-world variant.
//
// Every response is a complete configuration. It is acknowledged when it is in use. A configuration with a
// mistake is rejected, with a description of the mistakes. The previous one then stays in use. It also stays in use
// while the control plane cannot be reached.
package xds

import (
	"cmp"
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
	// pingEvery is the interval of pings that detect a server which has disappeared. Servers with default
	// settings close a connection with more than one ping in 5 minutes. TCP keep-alive detects most cases
	// within a minute, but not a server behind a proxy.
	pingEvery   = 5 * time.Minute
	pingTimeout = 20 * time.Second
	tcpIdle     = 30 * time.Second
	tcpInterval = 10 * time.Second
	tcpProbes   = 3
	// maxRefusal bounds the description of a rejected configuration in the answer to the server, in bytes.
	// The log has all of it.
	maxRefusal = 4 << 10
)

// Config configures a Client.
type Config struct {
	// Server is host:port, or another gRPC target.
	Server string
	// NodeID and NodeMetadata identify this client to the server.
	NodeID       string
	NodeMetadata map[string]string
	// Headers are sent with the stream. See CheckHeader.
	Headers map[string]string
	// TLS is nil for an unencrypted connection.
	TLS *TLS
	// MaxMessage bounds a response, in bytes; 0 means DefaultMaxMessage.
	MaxMessage int
	// MaxLimits bounds the limits of a response; 0 means config.DefaultMaxLimits. It also bounds what else needs memory.
	MaxLimits int
	// MinBackoff and MaxBackoff bound the pause before the next attempt. The pause is a random part of
	// MinBackoff, then of twice as much and so on, up to MaxBackoff. 0 means the defaults.
	MinBackoff, MaxBackoff time.Duration
	// Version is the version of the program.
	Version string
	// Log receives an entry when a stream opens, ends or cannot be opened.
	Log *zap.Logger
	// Connected, if not nil, is called with true when a stream opens, and with false when it ends.
	Connected func(bool)
}

// Use puts a complete configuration in use. problems has the mistakes that were found while the messages were decoded.
// If Use returns an error, the client sends it to the server as a rejection.
type Use func(messages []config.Message, problems config.Problems) error

// Client receives configurations from a control plane.
type Client struct {
	config Config
	node   *core.Node
}

// New makes a Client. It returns an error if c is invalid, or if a TLS file cannot be used.
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
	conn, err := client.dial() // checks the settings, without connecting
	if err != nil {
		return nil, err
	}
	return client, conn.Close()
}

// CheckHeader returns an error if gRPC would fail every stream because of this header.
func CheckHeader(name, value string) error {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789-_."
	switch lower := strings.ToLower(name); {
	case name == "" || strings.Trim(lower, letters) != "":
		return fmt.Errorf("%q cannot be the name of a gRPC header; write letters, digits, -, _ and . only", name)
	case strings.HasPrefix(lower, "grpc-"):
		return fmt.Errorf("header %q: names that start with grpc- are reserved for gRPC; use another name", name)
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
		return fmt.Errorf("the value of header %q has a character that is not printable ASCII", name)
	}
	return nil
}

// Run calls apply with every configuration that the server sends, until ctx ends.
func (c *Client) Run(ctx context.Context, apply Use) {
	for failures := 0; ; failures++ {
		answered, err := c.stream(ctx, apply)
		if ctx.Err() != nil {
			return
		}
		if answered {
			failures = 0
		}
		pause := c.backoff(failures)
		c.config.Log.Warn("no stream from the xDS server (--xds-server); the last configuration stays in use",
			zap.String("server", c.config.Server), zap.Error(err), zap.Duration("again_in", pause))
		sleep(ctx, pause)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// backoff returns the pause after a number of consecutive failures. It is random between 0 and a maximum,
// so that not all clients connect to a server at the same time when it is back.
func (c *Client) backoff(failures int) time.Duration {
	whole := c.config.MaxBackoff
	if failures < 32 && c.config.MinBackoff<<failures < whole {
		whole = max(c.config.MinBackoff<<failures, 1)
	}
	return rand.N(whole)
}

// dial makes a client connection, which connects when it is used. Each stream has a new one, so that names
// are resolved and certificates are read again.
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
		grpc.WithDisableServiceConfig(), // ignores service configurations from DNS
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

// stream opens a stream and follows it until it ends. answered reports whether the server has sent a response, valid
// or not.
func (c *Client) stream(ctx context.Context, apply Use) (answered bool, err error) {
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
	// The first request has no version, even if an earlier stream had one. A restarted server may count its
	// versions from the beginning. It would then assume that this client has its configuration.
	next := &discovery.DiscoveryRequest{}
	var rejected rejections
	for {
		next.TypeUrl, next.Node = TypeURL, c.node
		// If Send fails, Recv returns the cause.
		_ = s.Send(next)
		response, err := s.Recv()
		if err != nil {
			return answered, err
		}
		answered = true
		next = answer(response, next.VersionInfo, cmp.Or(c.config.MaxLimits, config.DefaultMaxLimits), apply)
		if earlier, again := rejected.add(response.GetVersionInfo(), next.ErrorDetail == nil); again {
			// Some servers, such as go-control-plane's, send a rejected version again at once. Without a
			// pause, that would keep both sides busy.
			sleep(s.Context(), c.backoff(earlier))
		}
	}
}

// rejections has the last rejected version of a stream, and how often it was received again.
type rejections struct {
	version string
	again   int
}

// add records whether the client accepted a version. again reports that the client rejected the version, and that it is
// the version that the client rejected last. earlier is how often that had happened before.
func (r *rejections) add(version string, accepted bool) (earlier int, again bool) {
	switch {
	case accepted:
		*r = rejections{}
	case version != r.version:
		*r = rejections{version: version}
	default:
		r.again++
		return r.again - 1, true
	}
	return 0, false
}

// answer calls apply with a response, and returns the acknowledgement, or a rejection with a description. current is
// the version that was in use before.
func answer(r *discovery.DiscoveryResponse, current string, maxLimits int, apply Use) *discovery.DiscoveryRequest {
	var err error
	if r.GetTypeUrl() == TypeURL {
		err = apply(decode(r.GetResources(), maxLimits))
	} else {
		err = errors.New("this client requests only " + TypeURL)
	}
	if err == nil {
		return &discovery.DiscoveryRequest{VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()}
	}
	text := err.Error()
	if len(text) > maxRefusal {
		text = text[:maxRefusal] + "…"
	}
	return &discovery.DiscoveryRequest{
		VersionInfo: current, ResponseNonce: r.GetNonce(),
		ErrorDetail: &status.Status{Code: int32(codes.InvalidArgument), Message: strings.ToValidUTF8(text, "\ufffd")},
	}
}
