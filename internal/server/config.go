package server

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/accesslog"
	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
	"github.com/rlsidecar/rlsidecar/internal/httpapi"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/listen"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/statsd"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/tracing"
	"github.com/rlsidecar/rlsidecar/internal/tlsfiles"
)

// Config configures Run. The fields correspond to flags of serve, or to groups of flags, except Hangup, Version
// and Revision.
type Config struct {
	// Paths are the configuration files and folders.
	Paths []string
	// XDS is the control plane that provides the configuration, if Paths does not.
	XDS XDS
	// Defaults are the values of settings that the files do not contain.
	Defaults config.Options
	// Hangup receives a value for each requested reload. It may be nil.
	Hangup <-chan os.Signal

	// GRPC, HTTP and Admin are the addresses of the listeners: host:port, unix:///path or unix://@name. If
	// HTTP or Admin is empty, there is no such listener.
	GRPC, HTTP, Admin string
	// Metrics is the address of a listener that serves only the metrics, at MetricsPath. "" means that only
	// the admin listener serves them.
	Metrics, MetricsPath string
	// NearLimitRatio is the share of a limit above which the metrics count hits as near_limit. 0 means 0.8.
	NearLimitRatio float64
	// Statsd configures the StatsD server that receives the metrics. The caller does not set its fields Source and Log.
	// The zero value means that there is no such server.
	Statsd statsd.Config
	// Tracing traces the decisions of the gRPC listener; nil means no tracing.
	Tracing *tracing.Config
	// AdminToken, or the content of AdminTokenFile, is required for access to Admin. Both may be empty only if
	// Admin can be reached only from this machine. A changed token file is read again.
	AdminToken, AdminTokenFile string
	// AdminReadTokenFile contains a token that permits only reading at Admin. "" means that there is no such
	// token.
	AdminReadTokenFile string
	// APIToken, or the content of APITokenFile, is required for the HTTP API. Without a token the API is on
	// only if HTTP can be reached only from this machine.
	APIToken, APITokenFile string
	// SettleKeyFile contains one or two secrets that sign reservations. The first is the current one. "" means
	// that the APIToken signs them, or a random key if there is no token.
	SettleKeyFile string
	// LogListen is the address at which access logs return slots: udp://HOST:PORT or tcp://HOST:PORT with a loopback
	// address. "" means that there is no such listener.
	LogListen string
	// AccessLogService adds Envoy's access log service, which renews slots, to GRPC.
	AccessLogService bool
	// NoJSON removes /json from HTTP.
	NoJSON bool
	// HTTPProxyProtocol accepts a PROXY header at the start of HTTP connections from trusted proxies.
	HTTPProxyProtocol bool
	// APIInlineConfig accepts limits in requests to the HTTP API.
	APIInlineConfig bool
	// TLS names the files of the gRPC listener.
	TLS tlsfiles.Server
	// MaxConnectionAge is the age at which gRPC connections are drained. Requests still in flight are aborted
	// after another MaxConnectionGrace. 0 means never.
	MaxConnectionAge, MaxConnectionGrace time.Duration
	// MaxConnectionIdle is the time without a request in flight after which a gRPC connection is closed. 0
	// means never.
	MaxConnectionIdle time.Duration
	// HTTPIdleTimeout is the time without a request after which an HTTP connection is closed. 0 means
	// five minutes.
	HTTPIdleTimeout time.Duration
	// GRPCMaxConnections and HTTPMaxConnections bound the number of open connections. 0 means the result of
	// listen.ConnectionBounds.
	GRPCMaxConnections, HTTPMaxConnections int
	// Modes change the outcome of all denials.
	Modes limiter.Modes
	// Answers configures what answers contain besides the verdict.
	Answers grpcapi.Options
	// HTTPHeaders selects the rate limit headers of the HTTP listener.
	HTTPHeaders httpapi.HeaderSets
	// Redis configures the store of the buckets. The zero value means that buckets are in memory.
	Redis Redis
	// MemoryMaxKeys bounds the number of buckets in memory. 0 means memory.DefaultMaxKeys.
	MemoryMaxKeys int

	// DrainDelay is how long the server still accepts requests after it has reported that it is not ready.
	// Clients notice the report in that time.
	DrainDelay time.Duration
	// DrainTimeout bounds the wait for requests in flight. Requests that take longer are aborted.
	DrainTimeout time.Duration

	// Version and Revision are the version and the commit of the program.
	Version, Revision string
}

// Check returns an error for a mistake in c itself. It uses neither files nor the network.
func (c *Config) Check() error {
	if err := c.checkAddresses(); err != nil {
		return err
	}
	hasAdminToken := c.AdminToken != "" || c.AdminTokenFile != ""
	for _, is := range []struct {
		wrong   bool
		mistake string
	}{
		{c.AdminToken != "" && c.AdminTokenFile != "", "two admin tokens are given; give only one of RLSIDECAR_ADMIN_TOKEN and --admin-token-file"},
		{c.APIToken != "" && c.APITokenFile != "", "two API tokens are given; give only one of RLSIDECAR_API_TOKEN and --api-token-file"},
		{c.Admin != "" && !listen.IsLocal(c.Admin) && !hasAdminToken, "--admin-listen " + c.Admin + " can be reached from other machines; give --admin-token-file, or listen on 127.0.0.1"},
		{c.AdminReadTokenFile != "" && !hasAdminToken, "--admin-read-token-file has no effect without an admin token, because every client may read without one; give --admin-token-file too"},
		{c.GRPCMaxConnections < 0 || c.HTTPMaxConnections < 0, "RLSIDECAR_GRPC_MAX_CONNECTIONS and RLSIDECAR_HTTP_MAX_CONNECTIONS must not be negative; leave them out for the default"},
		{c.MaxConnectionIdle < 0 || c.HTTPIdleTimeout < 0, "RLSIDECAR_GRPC_MAX_CONNECTION_IDLE and RLSIDECAR_HTTP_IDLE_TIMEOUT must not be negative"},
		{c.Metrics != "" && !strings.HasPrefix(c.MetricsPath, "/"), fmt.Sprintf("RLSIDECAR_METRICS_PATH must start with /, but is %q", c.MetricsPath)},
		{len(c.Paths) > 0 && c.XDS.Server != "", "--config and --xds-server cannot be combined; give one of them"},
	} {
		if is.wrong {
			return errors.New(is.mistake)
		}
	}
	if c.LogListen != "" {
		if err := accesslog.CheckAddress(c.LogListen); err != nil {
			return fmt.Errorf("--log-listen: %w", err)
		}
	}
	if c.Statsd.Address != "" {
		if err := c.Statsd.Check(); err != nil {
			return err
		}
	}
	if c.Tracing != nil {
		if err := c.Tracing.Check(); err != nil {
			return err
		}
	}
	return cmp.Or(c.Answers.Check(), c.XDS.check(), c.TLS.Check())
}

func (c *Config) checkAddresses() error {
	for flag, address := range map[string]string{"grpc": c.GRPC, "http": c.HTTP, "admin": c.Admin, "metrics": c.Metrics} {
		if _, err := strconv.ParseUint(address, 10, 16); err == nil {
			return fmt.Errorf("--%s-listen %s is a port without an address: write 127.0.0.1:%s for this machine only, or :%s for all of its addresses",
				flag, address, address, address)
		}
	}
	return nil
}
