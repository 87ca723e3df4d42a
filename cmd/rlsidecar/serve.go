package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
	"github.com/rlsidecar/rlsidecar/internal/httpapi"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/server"
)

// serveCmd has one field for each flag: that is the form of the library.
type serveCmd struct {
	Config []string `placeholder:"PATH" env:"RLSIDECAR_CONFIG" help:"File, folder of *.yaml files, or folder/** for all files under it; may be repeated (in the environment with commas). Needed, unless there is --xds-server."`
	Reload string   `enum:"all,isolate" default:"all" env:"RLSIDECAR_RELOAD" help:"A configuration with a mistake is refused as a whole (all), or for the domains with a mistake while the others go live (isolate) (${default})."`
	configFlags
	xdsFlags

	GRPCListen        string    `name:"grpc-listen" default:"127.0.0.1:8081" placeholder:"ADDR" env:"RLSIDECAR_GRPC_LISTEN" help:"Where Envoy asks: host:port, unix:///path or unix://@name (${default})."`
	GRPCEngine        string    `name:"grpc-engine" enum:"fast,grpc-go" default:"fast" env:"RLSIDECAR_GRPC_ENGINE" help:"What serves it: fast answers ShouldRateLimit directly on HTTP/2, for a fraction of the processor time; grpc-go is the library alone (${default})."`
	HTTPListen        string    `name:"http-listen" default:"127.0.0.1:8080" placeholder:"ADDR" env:"RLSIDECAR_HTTP_LISTEN" help:"JSON and health; empty: not at all (${default})."`
	HTTPProxyProtocol bool      `name:"http-proxy-protocol" env:"RLSIDECAR_HTTP_PROXY_PROTOCOL" help:"Take PROXY protocol headers (v1, v2) on the HTTP port from trusted_proxies."`
	APIToken          string    `name:"api-token" placeholder:"TOKEN" env:"RLSIDECAR_API_TOKEN" help:"Bearer token for /v1/limit and its kin on the HTTP port; without one they answer only where that is this machine's only."`
	APITokenFile      tokenFile `name:"api-token-file" placeholder:"FILE" env:"RLSIDECAR_API_TOKEN_FILE" help:"File with that token instead, which the list of processes does not show; read again when it changes."`
	HTTPJSON          string    `name:"http-json" enum:"on,off" default:"on" env:"RLSIDECAR_HTTP_JSON" help:"POST /json on the HTTP port, the reference server's form, which needs no token: on or off (${default})."`
	APIInlineConfig   bool      `name:"api-inline-config" env:"RLSIDECAR_API_INLINE_CONFIG" help:"Let requests to the HTTP API bring limits of their own (config). Only where who asks may choose them."`
	AdminListen       string    `default:"127.0.0.1:6070" placeholder:"ADDR" env:"RLSIDECAR_ADMIN_LISTEN" help:"The page, metrics and profiles; empty: not at all (${default})."`
	AdminToken        string    `placeholder:"TOKEN" env:"RLSIDECAR_ADMIN_TOKEN" help:"Bearer token for the admin port; needed where it is not this machine's only."`
	AdminTokenFile    tokenFile `placeholder:"FILE" env:"RLSIDECAR_ADMIN_TOKEN_FILE" help:"File with that token instead; read again when it changes."`

	AdminReadTokenFile tokenFile `placeholder:"FILE" env:"RLSIDECAR_ADMIN_READ_TOKEN_FILE" help:"File with a token that may read at the admin port, and change nothing."`
	StateDir           string    `placeholder:"DIR" env:"RLSIDECAR_STATE_DIR" help:"Folder where adjustments are kept over a restart; with Redis, the last known ones, for a start without it (nowhere)."`
	AuditKeyFile       tokenFile `placeholder:"FILE" env:"RLSIDECAR_AUDIT_KEY_FILE" help:"File with the secret that chains the audit of adjustments, the same for all sidecars (none)."`

	MaxDescriptors int `default:"100" placeholder:"N" env:"RLSIDECAR_MAX_DESCRIPTORS" help:"The most descriptors of a request, at most 1000; one with more is denied (${default})."`
	MaxEntries     int `default:"16" placeholder:"N" env:"RLSIDECAR_MAX_ENTRIES" help:"The most entries of a descriptor, at most 100; a request with more is denied (${default})."`

	TLSCert       string `name:"tls-cert" placeholder:"FILE" env:"RLSIDECAR_TLS_CERT" help:"Certificate of the gRPC port; read again when it changes."`
	TLSKey        string `name:"tls-key" placeholder:"FILE" env:"RLSIDECAR_TLS_KEY" help:"Its key."`
	TLSClientCA   string `name:"tls-client-ca" placeholder:"FILE" env:"RLSIDECAR_TLS_CLIENT_CA" help:"Clients must show a certificate signed by this CA."`
	TLSClientName string `name:"tls-client-name" placeholder:"NAME" env:"RLSIDECAR_TLS_CLIENT_NAME" help:"And it must be for this DNS name."`

	MaxConnectionAge      time.Duration `name:"grpc-max-connection-age" placeholder:"TIME" env:"RLSIDECAR_GRPC_MAX_CONNECTION_AGE" help:"Ask clients to connect anew after this long, so that they find new instances (never)."`
	MaxConnectionAgeGrace time.Duration `name:"grpc-max-connection-age-grace" placeholder:"TIME" env:"RLSIDECAR_GRPC_MAX_CONNECTION_AGE_GRACE" help:"Then cut off what is under way after this long (never)."`
	MaxConnectionIdle     time.Duration `name:"grpc-max-connection-idle" default:"15m" placeholder:"TIME" env:"RLSIDECAR_GRPC_MAX_CONNECTION_IDLE" help:"Close gRPC connections without a request for this long; 0: never (${default})."`
	GRPCMaxConnections    int           `name:"grpc-max-connections" placeholder:"N" env:"RLSIDECAR_GRPC_MAX_CONNECTIONS" help:"The most gRPC connections that are open; silent ones are closed for new ones (what the limits of open files and of memory allow)."`
	HTTPMaxConnections    int           `name:"http-max-connections" placeholder:"N" env:"RLSIDECAR_HTTP_MAX_CONNECTIONS" help:"The same for HTTP connections; beyond it only health checks are answered."`
	HTTPIdleTimeout       time.Duration `name:"http-idle-timeout" default:"5m" placeholder:"TIME" env:"RLSIDECAR_HTTP_IDLE_TIMEOUT" help:"Close HTTP connections that wait for a request for this long (${default})."`

	MetricsListen  string  `placeholder:"ADDR" env:"RLSIDECAR_METRICS_LISTEN" help:"Metrics alone, without a token (not at all)."`
	MetricsPath    string  `default:"/metrics" placeholder:"PATH" env:"RLSIDECAR_METRICS_PATH" help:"Where they are there (${default})."`
	NearLimitRatio float64 `default:"0.8" placeholder:"SHARE" env:"RLSIDECAR_NEAR_LIMIT_RATIO" help:"Hits above this part of a limit count as near_limit (${default})."`

	statsdFlags
	tracingFlags

	ShadowMode bool `env:"RLSIDECAR_SHADOW_MODE" help:"Let every request pass; statuses and metrics tell what would have been denied."`
	QuotaMode  bool `env:"RLSIDECAR_QUOTA_MODE" help:"Deny a request only where each of its descriptors is over its limit."`

	MemoryMaxKeys int `placeholder:"N" env:"RLSIDECAR_MEMORY_MAX_KEYS" help:"The most buckets kept in memory (1000000, or what half of a container's memory holds)."`

	redisFlags

	ResponseHeaders bool   `env:"RLSIDECAR_RESPONSE_HEADERS" help:"Let the proxy add rate limit headers to responses."`
	LimitHeader     string `default:"RateLimit-Limit" placeholder:"NAME" env:"RLSIDECAR_LIMIT_HEADER" help:"Name of that with the limit (${default})."`
	RemainingHeader string `default:"RateLimit-Remaining" placeholder:"NAME" env:"RLSIDECAR_REMAINING_HEADER" help:"Name of that with what is left (${default})."`
	ResetHeader     string `default:"RateLimit-Reset" placeholder:"NAME" env:"RLSIDECAR_RESET_HEADER" help:"Name of that with the seconds to wait (${default})."`
	DynamicMetadata bool   `env:"RLSIDECAR_DYNAMIC_METADATA" help:"Answer with dynamic metadata."`

	HTTPHeaders httpHeaders `name:"http-headers" default:"ietf,x,retry_after" placeholder:"SETS" env:"RLSIDECAR_HTTP_HEADERS" help:"Rate limit headers of the HTTP port's decisions, where http_headers of the domain does not say: of ietf, x and retry_after (${default}), or none."`

	ReusePort    bool          `env:"RLSIDECAR_REUSE_PORT" help:"Share the ports and sockets with a process that shares them, so that a new one takes over before the old one leaves; Linux only."`
	DrainDelay   time.Duration `default:"2s" env:"RLSIDECAR_DRAIN_DELAY" help:"Go on serving for this long after readiness has failed; at least two of the proxy's health checks (${default})."`
	DrainTimeout time.Duration `default:"10s" env:"RLSIDECAR_DRAIN_TIMEOUT" help:"Then wait for requests under way for this long (${default})."`

	LogLevel  string `enum:"debug,info,warn,error" default:"info" env:"RLSIDECAR_LOG_LEVEL" help:"debug, info, warn or error."`
	LogFormat string `enum:"text,json" default:"text" env:"RLSIDECAR_LOG_FORMAT" help:"text or json."`
}

// Help is shown by serve --help.
func (serveCmd) Help() string {
	return `Buckets are kept in memory, or in Redis where --redis-url is given. The configuration is read again when its files
change, and on SIGHUP; one with a mistake is refused, and the one before it
stays in use. SIGTERM fails readiness, waits, then stops.

Example:

  rlsidecar serve --config limits.yaml
  rlsidecar serve --config /etc/rlsidecar/ --grpc-listen unix:///run/rlsidecar.sock
  rlsidecar serve --config limits.yaml --redis-url redis+sentinel://s1,s2,s3/main
  rlsidecar serve --xds-server control-plane:18001 --xds-node-id edge --start-without-config`
}

// Run serves until a signal ends it.
func (c *serveCmd) Run(a *app) error {
	if a.reference.err != nil {
		return exitError{exitUsage, a.reference.err}
	}
	plane, err := c.controlPlane(a.reference)
	if err != nil {
		return exitError{exitUsage, err}
	}
	settings := c.settings(plane)
	if plane.Server != "" && c.Consume == "auto" {
		// Control planes make limits for the reference server, and proxies charge some of them after the work
		// (token usage). A denial of such a charge must consume, or the work would be free.
		settings.Defaults.ConsumeEach = true
	}
	settings.Defaults.ConsumeTogether = a.reference.ConsumeTogether
	if err := settings.Answers.Bounds.Check(); err != nil { // here 0 is a mistake, not the default
		return exitError{exitUsage, err}
	}
	if settings.Statsd, err = c.statsd(a.reference); err != nil {
		return exitError{exitUsage, err}
	}
	if err := settings.Check(); err != nil {
		return exitError{exitUsage, err}
	}
	if err := readable(c.Config); err != nil {
		return err
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	settings.Hangup = hangup
	// A second signal does what it does to any program: who sends it is done with waiting.
	defer context.AfterFunc(a.ctx, func() { signal.Reset(os.Interrupt, syscall.SIGTERM) })()

	log := newLogger(a.stderr, c.LogLevel, c.LogFormat)
	for _, w := range a.reference.Warnings {
		log.Warn("environment", zap.String("warning", w))
	}
	if fits := fitMemory(log); settings.MemoryMaxKeys == 0 {
		settings.MemoryMaxKeys = fits
	}
	err = server.Run(a.ctx, settings, log, func(r server.Running) {
		if c.LogFormat == "text" { // what reads JSON reads nothing else
			fmt.Fprint(a.stderr, greeting(r, !settings.NoJSON))
		}
	})
	if problems, ok := errors.AsType[config.Problems](err); ok {
		for _, p := range problems {
			fmt.Fprintln(a.stderr, p)
		}
		return exitError{code: exitNo}
	}
	if unusable, ok := errors.AsType[server.UnusableRedis](err); ok {
		return exitError{exitNo, unusable}
	}
	return err
}

// settings is what the flags say; plane brings the configuration, unless files do.
func (c *serveCmd) settings(plane server.XDS) server.Config {
	version, revision := build()
	s := server.Config{
		Paths: c.Config, XDS: plane, Defaults: c.options(), Isolate: c.Reload == "isolate",
		GRPC: c.GRPCListen, HTTP: c.HTTPListen, HTTPProxyProtocol: c.HTTPProxyProtocol, Admin: c.AdminListen, AdminToken: c.AdminToken,
		AdminReadTokenFile: string(c.AdminReadTokenFile), StateDir: c.StateDir, AuditKeyFile: string(c.AuditKeyFile),
		APIToken: c.APIToken, APITokenFile: string(c.APITokenFile), AdminTokenFile: string(c.AdminTokenFile), NoJSON: c.HTTPJSON == "off",
		APIInlineConfig: c.APIInlineConfig,
		TLS:             server.TLSFiles{Cert: c.TLSCert, Key: c.TLSKey, ClientCA: c.TLSClientCA, ClientName: c.TLSClientName},
		Metrics:         c.MetricsListen, MetricsPath: c.MetricsPath, NearLimitRatio: c.NearLimitRatio,
		Engine: server.Engine(c.GRPCEngine), MaxConnectionAge: c.MaxConnectionAge, MaxConnectionGrace: c.MaxConnectionAgeGrace,
		MaxConnectionIdle: c.MaxConnectionIdle, HTTPIdleTimeout: c.HTTPIdleTimeout,
		GRPCMaxConnections: c.GRPCMaxConnections, HTTPMaxConnections: c.HTTPMaxConnections,
		Modes: limiter.Modes{Shadow: c.ShadowMode, Quota: c.QuotaMode},
		Answers: grpcapi.Options{
			Metadata: c.DynamicMetadata, Bounds: grpcapi.Bounds{Descriptors: c.MaxDescriptors, Entries: c.MaxEntries},
		},
		Tracing:       c.tracing(version),
		HTTPHeaders:   httpapi.HeaderSets(c.HTTPHeaders),
		MemoryMaxKeys: c.MemoryMaxKeys,
		Redis:         c.redis(),
		ReusePort:     c.ReusePort,
		DrainDelay:    c.DrainDelay, DrainTimeout: c.DrainTimeout,
		Version: version, Revision: revision,
	}
	if c.ResponseHeaders {
		s.Answers.Headers = &grpcapi.Headers{Limit: c.LimitHeader, Remaining: c.RemainingHeader, Reset: c.ResetHeader}
	}
	return s
}

// httpHeaders is the value of --http-headers.
type httpHeaders httpapi.HeaderSets

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *httpHeaders) UnmarshalText(text []byte) error {
	words := strings.Split(string(text), ",")
	for i := range words {
		words[i] = strings.TrimSpace(words[i])
	}
	sets, err := limiter.ParseHeaderSets(words)
	*h = httpHeaders(sets)
	return err
}

// tokenFile is the name of a file with a token. An empty name is a mistake, as of a variable of a script
// that is not set: without a file there would be no token.
type tokenFile string

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *tokenFile) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return errors.New("name the file with the token")
	}
	*f = tokenFile(text)
	return nil
}

// newLogger logs to w, a line for each entry.
func newLogger(w io.Writer, level, format string) *zap.Logger {
	at, _ := zapcore.ParseLevel(level) // an enum
	c := zap.NewProductionEncoderConfig()
	c.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	c.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder(c)
	if format == "text" {
		c.EncodeTime = zapcore.RFC3339TimeEncoder
		c.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(c)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), at))
}
