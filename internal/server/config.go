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

// Config configures Run. A field with the tag setting is a setting of serve, which has a flag and a variable, or only a
// variable. Its tag help describes the field.
type Config struct {
	Paths []string `name:"config" setting:"flag" placeholder:"PATH" help:"File, folder of *.yaml and *.yml files, or folder/** for all files below it. May be repeated; in the variable, separate several by commas. Required without --xds-server."`
	// XDS is the control plane that provides the configuration, if Paths does not.
	XDS XDS `embed:""`
	// Defaults are the values of settings that the files do not contain.
	Defaults config.Options `kong:"-"`
	// Hangup receives a value for each requested reload. It may be nil.
	Hangup <-chan os.Signal `kong:"-"`

	GRPC string `name:"grpc-listen" setting:"flag" default:"127.0.0.1:8081" placeholder:"ADDR" help:"Address of the gRPC listener, for Envoy: host:port, unix:///path or unix://@name (${default})."`
	// TLS names the files of the gRPC listener.
	TLS                tlsfiles.Server `embed:""`
	MaxConnectionAge   time.Duration   `name:"grpc-max-connection-age" setting:"flag" placeholder:"TIME" help:"Make clients open a new connection after this time, so that they find new instances (never)."`
	MaxConnectionGrace time.Duration   `name:"grpc-max-connection-age-grace" setting:"variable" placeholder:"TIME" help:"After --grpc-max-connection-age, wait this long for requests in flight, and then close the connection. Default: without end."`
	MaxConnectionIdle  time.Duration   `name:"grpc-max-connection-idle" setting:"variable" default:"15m" help:"Close gRPC connections that had no request for this time, with GOAWAY; 0 means never."`
	GRPCMaxConnections int             `name:"grpc-max-connections" setting:"variable" placeholder:"N" help:"Maximum number of gRPC connections. Idle ones are closed to make room for new ones. Default: as many as the limits of open files and memory allow."`
	AccessLogService   bool            `name:"access-log-service" setting:"variable" help:"true: the gRPC listener also serves Envoy's access log service, which renews the slots of long requests."`
	// Answers configures what answers contain besides the verdict.
	Answers grpcapi.Options `kong:"-"`

	HTTP              string `name:"http-listen" setting:"flag" default:"127.0.0.1:8080" placeholder:"ADDR" help:"Address of the HTTP listener: auth requests, JSON and health. Empty: no HTTP listener (${default})."`
	HTTPProxyProtocol bool   `name:"http-proxy-protocol" setting:"flag" help:"Accept PROXY protocol headers (v1 and v2) from trusted_proxies on the HTTP listener."`
	// NoJSON removes /json from HTTP.
	NoJSON bool `kong:"-"`
	// HTTPHeaders selects the rate limit headers of the HTTP listener.
	HTTPHeaders        httpapi.HeaderSets `kong:"-"`
	HTTPMaxConnections int                `name:"http-max-connections" setting:"variable" placeholder:"N" help:"Maximum number of HTTP connections. Beyond it, only health checks are answered. Default: as many as the limits of open files and memory allow."`
	HTTPIdleTimeout    time.Duration      `name:"http-idle-timeout" setting:"variable" default:"5m" help:"Close HTTP connections that had no request for this time."`
	APIToken           string             `name:"api-token" setting:"variable" placeholder:"TOKEN" help:"Bearer token of the HTTP API (/v1/limit, /v1/check, …), instead of --api-token-file."`
	APITokenFile       string             `name:"api-token-file" setting:"flag" placeholder:"FILE" help:"File that contains the bearer token of the HTTP API (/v1/limit, /v1/check, …). Read again when it changes. Without a token, the API is served only if the HTTP listener is a Unix socket or a loopback address." type:"tokenfile"`
	APIInlineConfig    bool               `name:"api-inline-config" setting:"flag" help:"Let requests to the HTTP API contain their own limits, in the field config. Use it only if the callers may choose their limits."`
	SettleKeyFile      string             `name:"settle-key-file" setting:"flag" placeholder:"FILE" help:"File with the key that signs the ids of reservations. All sidecars need the same key. To change the key, write the new one in the first line and the old one in the second: both are accepted. Without this file, the key is the API token or, if there is none, a random key, which the sidecars share in Redis." type:"tokenfile"`

	Admin              string `name:"admin-listen" setting:"flag" default:"127.0.0.1:6070" placeholder:"ADDR" help:"Address of the admin listener: admin page, metrics and profiles. Empty: no admin listener (${default})."`
	AdminToken         string `name:"admin-token" setting:"variable" placeholder:"TOKEN" help:"Bearer token of the admin listener, instead of --admin-token-file."`
	AdminTokenFile     string `name:"admin-token-file" setting:"flag" placeholder:"FILE" help:"File that contains the bearer token of the admin listener. Read again when it changes. A token is required unless the listener is a Unix socket or a loopback address." type:"tokenfile"`
	AdminReadTokenFile string `name:"admin-read-token-file" setting:"flag" placeholder:"FILE" help:"File that contains a second token of the admin listener, for readers. It cannot change or reset anything." type:"tokenfile"`

	Metrics        string  `name:"metrics-listen" setting:"flag" placeholder:"ADDR" help:"Address of a listener for metrics only, without a token (none)."`
	MetricsPath    string  `name:"metrics-path" setting:"variable" default:"/metrics" help:"Path of the metrics at --metrics-listen."`
	NearLimitRatio float64 `name:"near-limit-ratio" setting:"variable" default:"0.8" help:"Above this share of a limit, allowed hits count as near_limit in the metrics."`
	// Statsd configures the StatsD server that receives the metrics. The caller does not set its fields Source and Log.
	// The zero value means that there is no such server.
	Statsd statsd.Config `kong:"-"`
	// Tracing traces the decisions of the gRPC listener; nil means no tracing.
	Tracing *tracing.Config `kong:"-"`

	// Modes change the outcome of all denials.
	Modes         limiter.Modes `kong:"-"`
	MemoryMaxKeys int           `name:"memory-max-keys" setting:"flag" placeholder:"N" help:"Maximum number of buckets in memory (1000000, or fewer in a container with little memory)."`
	// Redis configures the store of the buckets. Without a URL, buckets are in memory.
	Redis Redis `embed:""`
	// LogListen is the address at which access logs return slots: udp://HOST:PORT or tcp://HOST:PORT with a loopback
	// address. "" means that there is no such listener.
	LogListen string `kong:"-"`

	DrainDelay   time.Duration `name:"drain-delay" setting:"flag" default:"2s" help:"After SIGTERM, the time to serve while not ready, so that proxies notice. Make it at least twice the interval of their health checks (${default})."`
	DrainTimeout time.Duration `name:"drain-timeout" setting:"flag" default:"10s" help:"After --drain-delay, the time to wait for requests in flight (${default})."`

	// Version and Revision are the version and the commit of the program.
	Version  string `kong:"-"`
	Revision string `kong:"-"`
}

// Check returns an error for a mistake in c itself. It uses neither files nor the network.
func (c *Config) Check() error {
	for flag, address := range map[string]string{"grpc": c.GRPC, "http": c.HTTP, "admin": c.Admin, "metrics": c.Metrics} {
		if _, err := strconv.ParseUint(address, 10, 16); err == nil {
			return fmt.Errorf("--%s-listen %s is a port without an address: write 127.0.0.1:%s for this machine only, or :%s for all of its addresses",
				flag, address, address, address)
		}
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
	var logs, stats, traces error
	if c.LogListen != "" {
		if logs = accesslog.CheckAddress(c.LogListen); logs != nil {
			logs = fmt.Errorf("--log-listen: %w", logs)
		}
	}
	if c.Statsd.Address != "" {
		stats = c.Statsd.Check()
	}
	if c.Tracing != nil {
		traces = c.Tracing.Check()
	}
	return cmp.Or(logs, stats, traces, c.Answers.Check(), c.XDS.check(), c.TLS.Check())
}
