package main

import (
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

// serveCmd has one field for each flag, because kong requires that.
type serveCmd struct {
	Config []string `placeholder:"PATH" env:"RLSIDECAR_CONFIG" help:"File, folder of *.yaml and *.yml files, or folder/** for all files below it. May be repeated; in the variable, separate several by commas. Required without --xds-server."`
	Reload string   `enum:"all,isolate" default:"all" env:"RLSIDECAR_RELOAD" help:"Effect of a mistake in the configuration. all: the whole new configuration is rejected. isolate: only the domains with a mistake are rejected."`
	configFlags
	xdsFlags

	GRPCListen        string    `name:"grpc-listen" default:"127.0.0.1:8081" placeholder:"ADDR" env:"RLSIDECAR_GRPC_LISTEN" help:"Address of the gRPC listener, for Envoy: host:port, unix:///path or unix://@name (${default})."`
	GRPCEngine        string    `name:"grpc-engine" enum:"fast,grpc-go" default:"fast" env:"RLSIDECAR_GRPC_ENGINE" help:"gRPC implementation. fast answers ShouldRateLimit directly on HTTP/2 and needs a fraction of the CPU time; grpc-go uses the gRPC library for every call (${default})."`
	HTTPListen        string    `name:"http-listen" default:"127.0.0.1:8080" placeholder:"ADDR" env:"RLSIDECAR_HTTP_LISTEN" help:"Address of the HTTP listener: auth requests, JSON and health. Empty: no HTTP listener (${default})."`
	HTTPProxyProtocol bool      `name:"http-proxy-protocol" env:"RLSIDECAR_HTTP_PROXY_PROTOCOL" help:"Accept PROXY protocol headers (v1 and v2) from trusted_proxies on the HTTP listener."`
	APIToken          string    `name:"api-token" placeholder:"TOKEN" env:"RLSIDECAR_API_TOKEN" help:"Bearer token of the HTTP API (/v1/limit, /v1/check, …). Without a token, the API is served only if the HTTP listener is a Unix socket or a loopback address."`
	APITokenFile      tokenFile `name:"api-token-file" placeholder:"FILE" env:"RLSIDECAR_API_TOKEN_FILE" help:"File that contains this token. Unlike --api-token, the process list does not show it. Read again when it changes."`
	SettleKeyFile     tokenFile `placeholder:"FILE" env:"RLSIDECAR_SETTLE_KEY_FILE" help:"File with the key that signs the ids of reservations. All sidecars need the same key. To change the key, write the new one in the first line and the old one in the second: both are accepted. Without this file, the key is the API token or, if there is none, a random key, which the sidecars share in Redis."`
	HTTPJSON          string    `name:"http-json" enum:"on,off" default:"on" env:"RLSIDECAR_HTTP_JSON" help:"on: the HTTP listener serves POST /json, in the format of the reference server. It needs no token. off: it does not (${default})."`
	APIInlineConfig   bool      `name:"api-inline-config" env:"RLSIDECAR_API_INLINE_CONFIG" help:"Let requests to the HTTP API contain their own limits, in the field config. Use it only if the callers may choose their limits."`
	AdminListen       string    `default:"127.0.0.1:6070" placeholder:"ADDR" env:"RLSIDECAR_ADMIN_LISTEN" help:"Address of the admin listener: admin page, metrics and profiles. Empty: no admin listener (${default})."`
	AdminToken        string    `placeholder:"TOKEN" env:"RLSIDECAR_ADMIN_TOKEN" help:"Bearer token of the admin listener. Required unless it is a Unix socket or a loopback address."`
	AdminTokenFile    tokenFile `placeholder:"FILE" env:"RLSIDECAR_ADMIN_TOKEN_FILE" help:"File that contains this token. Unlike --admin-token, the process list does not show it. Read again when it changes."`

	AdminReadTokenFile tokenFile `placeholder:"FILE" env:"RLSIDECAR_ADMIN_READ_TOKEN_FILE" help:"File that contains a second token of the admin listener, for readers. It cannot change or reset anything."`
	StateDir           string    `placeholder:"DIR" env:"RLSIDECAR_STATE_DIR" help:"Folder for adjustments, so that they survive a restart. Redis keeps them too; with Redis, the folder is necessary only to start while Redis is unreachable (none)."`
	AuditKeyFile       tokenFile `placeholder:"FILE" env:"RLSIDECAR_AUDIT_KEY_FILE" help:"File with a secret of 16 characters or more, which protects the audit of adjustments: a person without the secret cannot forge entries. All sidecars need the same secret (none)."`

	MaxDescriptors int `default:"100" placeholder:"N" env:"RLSIDECAR_MAX_DESCRIPTORS" help:"Maximum number of descriptors of a request, at most 1000. A request with more is denied (${default})."`
	MaxEntries     int `default:"16" placeholder:"N" env:"RLSIDECAR_MAX_ENTRIES" help:"Maximum number of entries of a descriptor, at most 100. A request with more is denied (${default})."`

	TLSCert       string `name:"tls-cert" placeholder:"FILE" env:"RLSIDECAR_TLS_CERT" help:"Certificate of the gRPC listener. Read again when it changes."`
	TLSKey        string `name:"tls-key" placeholder:"FILE" env:"RLSIDECAR_TLS_KEY" help:"Private key of that certificate."`
	TLSClientCA   string `name:"tls-client-ca" placeholder:"FILE" env:"RLSIDECAR_TLS_CLIENT_CA" help:"Require client certificates signed by this CA."`
	TLSClientName string `name:"tls-client-name" placeholder:"NAME" env:"RLSIDECAR_TLS_CLIENT_NAME" help:"Require client certificates for this DNS name."`

	MaxConnectionAge      time.Duration `name:"grpc-max-connection-age" placeholder:"TIME" env:"RLSIDECAR_GRPC_MAX_CONNECTION_AGE" help:"Make clients open a new connection after this time, so that they find new instances (never)."`
	MaxConnectionAgeGrace time.Duration `name:"grpc-max-connection-age-grace" placeholder:"TIME" env:"RLSIDECAR_GRPC_MAX_CONNECTION_AGE_GRACE" help:"After --grpc-max-connection-age, wait this long for requests in flight, and then close the connection (never)."`
	MaxConnectionIdle     time.Duration `name:"grpc-max-connection-idle" default:"15m" placeholder:"TIME" env:"RLSIDECAR_GRPC_MAX_CONNECTION_IDLE" help:"Close gRPC connections that had no request for this time; 0 means never (${default})."`
	GRPCMaxConnections    int           `name:"grpc-max-connections" placeholder:"N" env:"RLSIDECAR_GRPC_MAX_CONNECTIONS" help:"Maximum number of gRPC connections. Idle ones are closed to make room for new ones (as many as the limits of open files and memory allow)."`
	HTTPMaxConnections    int           `name:"http-max-connections" placeholder:"N" env:"RLSIDECAR_HTTP_MAX_CONNECTIONS" help:"Maximum number of HTTP connections. Beyond it, only health checks are answered."`
	HTTPIdleTimeout       time.Duration `name:"http-idle-timeout" default:"5m" placeholder:"TIME" env:"RLSIDECAR_HTTP_IDLE_TIMEOUT" help:"Close HTTP connections that had no request for this time (${default})."`

	MetricsListen  string  `placeholder:"ADDR" env:"RLSIDECAR_METRICS_LISTEN" help:"Address of a listener for metrics only, without a token (none)."`
	MetricsPath    string  `default:"/metrics" placeholder:"PATH" env:"RLSIDECAR_METRICS_PATH" help:"Path of the metrics at --metrics-listen (${default})."`
	NearLimitRatio float64 `default:"0.8" placeholder:"SHARE" env:"RLSIDECAR_NEAR_LIMIT_RATIO" help:"Above this share of a limit, allowed hits count as near_limit in the metrics (${default})."`

	statsdFlags
	tracingFlags

	ShadowMode bool `env:"RLSIDECAR_SHADOW_MODE" help:"Allow every request. Statuses and metrics show which requests would have been denied."`
	QuotaMode  bool `env:"RLSIDECAR_QUOTA_MODE" help:"Deny a request only if all its descriptors are over their limits. A request with a descriptor that has no limit is never denied."`

	MemoryMaxKeys int `placeholder:"N" env:"RLSIDECAR_MEMORY_MAX_KEYS" help:"Maximum number of buckets in memory (1000000, or fewer in a container with little memory)."`

	redisFlags

	ResponseHeaders bool   `env:"RLSIDECAR_RESPONSE_HEADERS" help:"Let Envoy add rate limit headers to its responses (gRPC only; --http-headers is for HTTP)."`
	LimitHeader     string `default:"RateLimit-Limit" placeholder:"NAME" env:"RLSIDECAR_LIMIT_HEADER" help:"Name of the header with the limit (${default})."`
	RemainingHeader string `default:"RateLimit-Remaining" placeholder:"NAME" env:"RLSIDECAR_REMAINING_HEADER" help:"Name of the header with the remaining units (${default})."`
	ResetHeader     string `default:"RateLimit-Reset" placeholder:"NAME" env:"RLSIDECAR_RESET_HEADER" help:"Name of the header with the seconds until a denied request can be repeated or, after an allowed one, until the bucket is full (${default})."`
	DynamicMetadata bool   `env:"RLSIDECAR_DYNAMIC_METADATA" help:"Add dynamic metadata to gRPC answers, for Envoy's access log and filters."`

	HTTPHeaders httpHeaders `name:"http-headers" default:"ietf,x,retry_after" placeholder:"SETS" env:"RLSIDECAR_HTTP_HEADERS" help:"Rate limit headers of HTTP answers, for domains without the key http_headers: none, or any of ietf, x, openai and retry_after (${default})."`

	DrainDelay   time.Duration `default:"2s" env:"RLSIDECAR_DRAIN_DELAY" help:"After SIGTERM, the time to serve while not ready, so that proxies notice. Make it at least twice the interval of their health checks (${default})."`
	DrainTimeout time.Duration `default:"10s" env:"RLSIDECAR_DRAIN_TIMEOUT" help:"After --drain-delay, the time to wait for requests in flight (${default})."`

	LogLevel  string `enum:"debug,info,warn,error" default:"info" env:"RLSIDECAR_LOG_LEVEL" help:"Log level: debug, info, warn or error."`
	LogFormat string `enum:"text,json" default:"text" env:"RLSIDECAR_LOG_FORMAT" help:"Log format: text or json."`
}

func (serveCmd) Help() string {
	return `Buckets are kept in memory, or in Redis if --redis-url is given. The configuration is
loaded again when its files change, and on SIGHUP. A configuration with a mistake is
rejected, and the last valid one stays in use.

After SIGTERM the sidecar is not ready, but serves for --drain-delay. Then it waits up to
--drain-timeout for the requests in flight, and stops.

Example:

  rlsidecar serve --config limits.yaml
  rlsidecar serve --config /etc/rlsidecar/ --grpc-listen unix:///run/rlsidecar.sock
  rlsidecar serve --config limits.yaml --redis-url redis+sentinel://s1,s2,s3/main
  rlsidecar serve --xds-server control-plane:18001 --xds-node-id edge --start-without-config`
}

func (c *serveCmd) Run(a *app) error {
	if removed := removedVariables(); removed != nil {
		return exitError{exitUsage, errors.New(strings.Join(removed, "\n"))}
	}
	if a.reference.err != nil {
		return exitError{exitUsage, a.reference.err}
	}
	plane, err := c.controlPlane(a.reference)
	if err != nil {
		return exitError{exitUsage, err}
	}
	settings := c.settings(plane)
	if plane.Server != "" && c.Consume == "auto" {
		// Control planes write limits for the reference server, and proxies charge some of these limits after
		// the work (token usage). A denied charge must still consume, or the work would be free.
		settings.Defaults.ConsumeEach = true
	}
	settings.Defaults.ConsumeTogether = a.reference.ConsumeTogether
	if err := settings.Answers.Bounds.Check(); err != nil { // grpcapi takes 0 as the default; a flag must not be 0
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

	log := newLogger(a.stderr, c.LogLevel, c.LogFormat)
	for _, w := range a.reference.Warnings {
		log.Warn("environment", zap.String("warning", w))
	}
	if fits := fitMemory(log); settings.MemoryMaxKeys == 0 {
		settings.MemoryMaxKeys = fits
	}
	err = server.Run(a.ctx, settings, log, func(r server.Running) {
		if c.LogFormat == "text" { // not for json, because programs that read JSON expect nothing else
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

// settings converts the flags. plane is the control plane that provides the configuration, or the zero XDS.
func (c *serveCmd) settings(plane server.XDS) server.Config {
	version, revision := build()
	s := server.Config{
		Paths: c.Config, XDS: plane, Defaults: c.options(), Isolate: c.Reload == "isolate",
		GRPC: c.GRPCListen, HTTP: c.HTTPListen, HTTPProxyProtocol: c.HTTPProxyProtocol, Admin: c.AdminListen, AdminToken: c.AdminToken,
		AdminReadTokenFile: string(c.AdminReadTokenFile), StateDir: c.StateDir, AuditKeyFile: string(c.AuditKeyFile),
		APIToken: c.APIToken, APITokenFile: string(c.APITokenFile), AdminTokenFile: string(c.AdminTokenFile), NoJSON: c.HTTPJSON == "off",
		APIInlineConfig: c.APIInlineConfig, SettleKeyFile: string(c.SettleKeyFile),
		TLS:     server.TLSFiles{Cert: c.TLSCert, Key: c.TLSKey, ClientCA: c.TLSClientCA, ClientName: c.TLSClientName},
		Metrics: c.MetricsListen, MetricsPath: c.MetricsPath, NearLimitRatio: c.NearLimitRatio,
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
		DrainDelay:    c.DrainDelay, DrainTimeout: c.DrainTimeout,
		Version: version, Revision: revision,
	}
	if c.ResponseHeaders {
		s.Answers.Headers = &grpcapi.Headers{Limit: c.LimitHeader, Remaining: c.RemainingHeader, Reset: c.ResetHeader}
	}
	return s
}

type httpHeaders httpapi.HeaderSets

func (h *httpHeaders) UnmarshalText(text []byte) error {
	words := strings.Split(string(text), ",")
	for i := range words {
		words[i] = strings.TrimSpace(words[i])
	}
	sets, err := limiter.ParseHeaderSets(words)
	*h = httpHeaders(sets)
	return err
}

// tokenFile is the name of a file with a token or a key. An empty name is rejected, because it may come from an
// unset variable in a script, and without a file no token would be required.
type tokenFile string

func (f *tokenFile) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return errors.New("the name of the token file is empty; give a file name")
	}
	*f = tokenFile(text)
	return nil
}

func newLogger(w io.Writer, level, format string) *zap.Logger {
	at, _ := zapcore.ParseLevel(level) // kong has already checked the value
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
