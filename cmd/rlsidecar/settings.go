package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/httpapi"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reference/refenv"
	"github.com/rlsidecar/rlsidecar/internal/server"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/statsd"
)

// This file declares each setting once, as a field with the tag setting. With setting:"flag" it has a flag and a
// variable. With setting:"variable" it has only a variable. The variable's name is RLSIDECAR_ and the name of the flag
// in capital letters. The table of package refenv names the settings that the reference server's variables set.

// serveSettings are the settings of serve.
type serveSettings struct {
	Config []string `setting:"flag" placeholder:"PATH" help:"File, folder of *.yaml and *.yml files, or folder/** for all files below it. May be repeated; in the variable, separate several by commas. Required without --xds-server."`
	configSettings

	XDSServer          string        `setting:"flag" placeholder:"HOST:PORT" help:"Get the configuration from this control plane, over ADS, instead of from files."`
	XDSNodeID          string        `setting:"flag" default:"default" placeholder:"ID" help:"Node ID that identifies this process to the control plane. Without the flag, it is the word ${default}."`
	XDSNodeMetadata    string        `setting:"variable" placeholder:"K=V,…" help:"Node metadata that is sent to the control plane."`
	XDSHeader          string        `setting:"variable" placeholder:"K:V,…" help:"Headers of the stream to the control plane."`
	XDSTLS             bool          `name:"xds-tls" setting:"flag" help:"Connect to the control plane over TLS."`
	XDSTLSCA           string        `name:"xds-tls-ca" setting:"flag" placeholder:"FILE" help:"CA of the control plane. Default: the system's. The TLS files are read again for every connection."`
	XDSTLSCert         string        `name:"xds-tls-cert" setting:"flag" placeholder:"FILE" help:"Client certificate for the control plane."`
	XDSTLSKey          string        `name:"xds-tls-key" setting:"flag" placeholder:"FILE" help:"Private key of the client certificate."`
	XDSTLSServerName   string        `name:"xds-tls-server-name" setting:"variable" placeholder:"NAME" help:"Name in the control plane's certificate, if it is not the host of --xds-server."`
	XDSOverlay         string        `setting:"variable" placeholder:"FILE" help:"File that makes limits of the control plane settle. It is read at the start."`
	XDSMaxMessage      int           `setting:"variable" placeholder:"BYTES" help:"Size of the largest configuration; 0 means 16 MiB."`
	XDSBackoff         time.Duration `setting:"variable" default:"1s" help:"Longest pause after the first failure to reach the control plane. It doubles with each further failure, up to RLSIDECAR_XDS_MAX_BACKOFF."`
	XDSMaxBackoff      time.Duration `setting:"variable" default:"30s" help:"Longest pause between two attempts to reach the control plane."`
	StartWithoutConfig bool          `setting:"flag" help:"Start before the control plane has sent a configuration. Until then, on_backend_failure decides and the sidecar is not ready."`

	GRPCListen            string        `setting:"flag" default:"127.0.0.1:8081" placeholder:"ADDR" help:"Address of the gRPC listener, for Envoy: host:port, unix:///path or unix://@name (${default})."`
	TLSCert               string        `name:"tls-cert" setting:"flag" placeholder:"FILE" help:"Certificate of the gRPC listener. Read again when it changes."`
	TLSKey                string        `name:"tls-key" setting:"flag" placeholder:"FILE" help:"Private key of that certificate."`
	TLSClientCA           string        `name:"tls-client-ca" setting:"flag" placeholder:"FILE" help:"Require client certificates signed by this CA."`
	TLSClientName         string        `name:"tls-client-name" setting:"flag" placeholder:"NAME" help:"Require client certificates for this DNS name."`
	MaxConnectionAge      time.Duration `name:"grpc-max-connection-age" setting:"flag" placeholder:"TIME" help:"Make clients open a new connection after this time, so that they find new instances (never)."`
	MaxConnectionAgeGrace time.Duration `name:"grpc-max-connection-age-grace" setting:"variable" placeholder:"TIME" help:"After --grpc-max-connection-age, wait this long for requests in flight, and then close the connection. Default: without end."`
	MaxConnectionIdle     time.Duration `name:"grpc-max-connection-idle" setting:"variable" default:"15m" help:"Close gRPC connections that had no request for this time, with GOAWAY; 0 means never."`
	GRPCMaxConnections    int           `setting:"variable" placeholder:"N" help:"Maximum number of gRPC connections. Idle ones are closed to make room for new ones. Default: as many as the limits of open files and memory allow."`
	AccessLogService      bool          `setting:"variable" help:"true: the gRPC listener also serves Envoy's access log service, which renews the slots of long requests."`
	MaxDescriptors        int           `setting:"variable" default:"100" help:"Maximum number of descriptors of a request, at most 1000. A request with more is denied."`
	MaxEntries            int           `setting:"variable" default:"16" help:"Maximum number of entries of a descriptor, at most 100. A request with more is denied."`
	ResponseHeaders       bool          `setting:"flag" help:"Let Envoy add rate limit headers to its responses (gRPC only; --http-headers is for HTTP)."`
	LimitHeader           string        `setting:"variable" default:"RateLimit-Limit" help:"Name of the header with the limit."`
	RemainingHeader       string        `setting:"variable" default:"RateLimit-Remaining" help:"Name of the header with the remaining units."`
	ResetHeader           string        `setting:"variable" default:"RateLimit-Reset" help:"Name of the header with the seconds until a denied request can be repeated or, after an allowed one, until the bucket is full."`
	DynamicMetadata       bool          `setting:"flag" help:"Add dynamic metadata to gRPC answers, for Envoy's access log and filters."`
	ReferenceMetadata     bool          `setting:"variable" help:"true: as --dynamic-metadata, but without denied_by, which the reference server does not send."`

	HTTPListen         string        `setting:"flag" default:"127.0.0.1:8080" placeholder:"ADDR" help:"Address of the HTTP listener: auth requests, JSON and health. Empty: no HTTP listener (${default})."`
	HTTPProxyProtocol  bool          `name:"http-proxy-protocol" setting:"flag" help:"Accept PROXY protocol headers (v1 and v2) from trusted_proxies on the HTTP listener."`
	HTTPJSON           string        `name:"http-json" setting:"flag" enum:"on,off" default:"on" help:"on: the HTTP listener serves POST /json, in the format of the reference server. It needs no token. off: it does not (${default})."`
	HTTPHeaders        httpHeaders   `setting:"flag" default:"ietf,x,retry_after" placeholder:"SETS" help:"Rate limit headers of HTTP answers, for domains without the key http_headers: none, or any of ietf, x, openai and retry_after (${default})."`
	HTTPMaxConnections int           `setting:"variable" placeholder:"N" help:"Maximum number of HTTP connections. Beyond it, only health checks are answered. Default: as many as the limits of open files and memory allow."`
	HTTPIdleTimeout    time.Duration `setting:"variable" default:"5m" help:"Close HTTP connections that had no request for this time."`
	APIToken           string        `name:"api-token" setting:"variable" placeholder:"TOKEN" help:"Bearer token of the HTTP API (/v1/limit, /v1/check, …), instead of --api-token-file."`
	APITokenFile       tokenFile     `name:"api-token-file" setting:"flag" placeholder:"FILE" help:"File that contains the bearer token of the HTTP API (/v1/limit, /v1/check, …). Read again when it changes. Without a token, the API is served only if the HTTP listener is a Unix socket or a loopback address."`
	APIInlineConfig    bool          `name:"api-inline-config" setting:"flag" help:"Let requests to the HTTP API contain their own limits, in the field config. Use it only if the callers may choose their limits."`
	SettleKeyFile      tokenFile     `setting:"flag" placeholder:"FILE" help:"File with the key that signs the ids of reservations. All sidecars need the same key. To change the key, write the new one in the first line and the old one in the second: both are accepted. Without this file, the key is the API token or, if there is none, a random key, which the sidecars share in Redis."`

	AdminListen        string    `setting:"flag" default:"127.0.0.1:6070" placeholder:"ADDR" help:"Address of the admin listener: admin page, metrics and profiles. Empty: no admin listener (${default})."`
	AdminToken         string    `setting:"variable" placeholder:"TOKEN" help:"Bearer token of the admin listener, instead of --admin-token-file."`
	AdminTokenFile     tokenFile `setting:"flag" placeholder:"FILE" help:"File that contains the bearer token of the admin listener. Read again when it changes. A token is required unless the listener is a Unix socket or a loopback address."`
	AdminReadTokenFile tokenFile `setting:"flag" placeholder:"FILE" help:"File that contains a second token of the admin listener, for readers. It cannot change or reset anything."`

	MetricsListen  string        `setting:"flag" placeholder:"ADDR" help:"Address of a listener for metrics only, without a token (none)."`
	MetricsPath    string        `setting:"variable" default:"/metrics" help:"Path of the metrics at --metrics-listen."`
	NearLimitRatio float64       `setting:"variable" default:"0.8" help:"Above this share of a limit, allowed hits count as near_limit in the metrics."`
	StatsdAddress  string        `setting:"flag" placeholder:"HOST:PORT" help:"Send the metrics of the reference server, under its names, to this StatsD server (not sent)."`
	StatsdProtocol string        `setting:"variable" enum:"tcp,udp" default:"udp" help:"Protocol of StatsD: tcp or udp."`
	StatsdFormat   string        `setting:"flag" enum:"statsd,dogstatsd" default:"statsd" help:"Format of StatsD: statsd, which writes tags into the names of metrics, or dogstatsd (${default})."`
	StatsdTags     string        `setting:"variable" placeholder:"K=V,…" help:"Tags of every StatsD metric."`
	StatsdInterval time.Duration `setting:"variable" default:"10s" help:"Time between two transmissions to StatsD."`
	Tracing        bool          `setting:"variable" help:"true: send traces of decisions to an OpenTelemetry collector. OpenTelemetry's own variables set the rest, such as OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_TRACES_SAMPLER and OTEL_SERVICE_NAME."`

	ShadowMode    bool `setting:"flag" help:"Allow every request. Statuses and metrics show which requests would have been denied."`
	QuotaMode     bool `setting:"flag" help:"Deny a request only if all its descriptors are over their limits. A request with a descriptor that has no limit is never denied."`
	MemoryMaxKeys int  `setting:"flag" placeholder:"N" help:"Maximum number of buckets in memory (1000000, or fewer in a container with little memory)."`
	redisSettings

	DrainDelay   time.Duration `setting:"flag" default:"2s" help:"After SIGTERM, the time to serve while not ready, so that proxies notice. Make it at least twice the interval of their health checks (${default})."`
	DrainTimeout time.Duration `setting:"flag" default:"10s" help:"After --drain-delay, the time to wait for requests in flight (${default})."`
	LogLevel     string        `setting:"flag" enum:"debug,info,warn,error" default:"info" help:"Log level: debug, info, warn or error."`
	LogFormat    string        `setting:"flag" enum:"text,json" default:"text" help:"Log format: text or json."`
}

// configSettings affect how a configuration is read: defaults of keys that its files may omit, and bounds. serve and
// the commands that read a configuration have the same ones, so that the commands check what serve uses.
type configSettings struct {
	Consume          string  `setting:"flag" enum:"auto,together,each" default:"auto" help:"How a denied request is charged, in domains without the key consume. together: it consumes nothing. each: the limits that allow it are charged, as in envoyproxy/ratelimit. auto: together for files, each for limits that a control plane sends."`
	OnBackendFailure string  `setting:"flag" enum:"deny,allow,local,error" default:"deny" help:"Answer when Redis does not decide in time, for limits without the key on_backend_failure: deny, allow, local (decide in memory with --local-share of the limit) or error (the proxy decides)."`
	LocalShare       float64 `setting:"flag" default:"0" help:"Share of a limit that this sidecar allows with on_backend_failure local, for limits without the key local_share: more than 0 and at most 1."`
	MaxLimits        int     `setting:"variable" default:"100000" help:"Maximum number of limits in a configuration. A named limit counts once for each descriptor that uses it. A limit takes 1 to 2 KB of memory."`
	LogListen        string  `setting:"flag" placeholder:"URL" help:"Receive the access log of NGINX, HAProxy or Caddy over udp://127.0.0.1:PORT or tcp://127.0.0.1:PORT. Each line ends in the id of a slot, which is returned. Concurrency limits of requests to /v1/auth need it (none)."`
	KeepBlanks       bool    `setting:"variable" help:"true: keep blanks at the ends of descriptor values. By default they are removed, because a client could get a new bucket by adding a blank."`
}

// redisSettings are the settings of the Redis that keeps the buckets.
type redisSettings struct {
	RedisURL          string        `setting:"flag" placeholder:"URL" help:"Keep buckets in Redis: redis://[user:pass@]host:port/db, rediss://, unix:///path, redis+sentinel://h1:p,h2:p/master or redis+cluster://h1:p,h2:p."`
	RedisPerSecondURL string        `setting:"flag" placeholder:"URL" help:"Keep the buckets of limits per second in this second Redis, as the reference server does with REDIS_PERSECOND."`
	BackendTimeout    time.Duration `setting:"flag" default:"10ms" help:"Deadline of a decision by Redis. After it, on_backend_failure decides (${default})."`
	RedisKeyPrefix    string        `setting:"flag" default:"rl:" placeholder:"TEXT" help:"Prefix of all keys in Redis (${default})."`
	RedisPasswordFile string        `setting:"flag" placeholder:"FILE" help:"File with password or user:password. Read again for every connection."`
	RedisWaitReplicas int           `setting:"flag" placeholder:"N" help:"Number of replicas that must confirm a charge. If fewer confirm it in time, on_backend_failure decides. With the number of all replicas, a failover loses no charge (0)."`
	RedisTLSCA        string        `name:"redis-tls-ca" setting:"flag" placeholder:"FILE" help:"CA that signed the certificate of Redis, for rediss://."`
	RedisTLSCert      string        `setting:"flag" placeholder:"FILE" help:"Client certificate. Read again for every connection."`
	RedisTLSKey       string        `setting:"flag" placeholder:"FILE" help:"Private key of the client certificate."`
	RedisTLSAnyName   bool          `name:"redis-tls-skip-hostname" setting:"flag" help:"Accept any host name in the certificate of Redis. It must still be signed by the CA."`
}

// mostLimits is the maximum of the setting max-limits, which exists to bound memory.
const mostLimits = 10_000_000

// kong calls Validate.
func (s configSettings) Validate() error {
	if s.MaxLimits < 1 || s.MaxLimits > mostLimits {
		return fmt.Errorf("RLSIDECAR_MAX_LIMITS must be between 1 and %d, but is %d", mostLimits, s.MaxLimits)
	}
	return nil
}

func (s configSettings) options() config.Options {
	failure, _ := limiter.ParseOnFailure(s.OnBackendFailure) // kong has already checked the value
	return config.Options{ConsumeEach: s.Consume == "each", OnFailure: failure, LocalShare: s.LocalShare, KeepBlanks: s.KeepBlanks, MaxLimits: s.MaxLimits, LogListener: s.LogListen != ""}
}

func (s redisSettings) redis() server.Redis {
	return server.Redis{
		URL: s.RedisURL, PerSecondURL: s.RedisPerSecondURL, Timeout: s.BackendTimeout, KeyPrefix: s.RedisKeyPrefix, PasswordFile: s.RedisPasswordFile,
		WaitReplicas: s.RedisWaitReplicas,
		CA:           s.RedisTLSCA, Cert: s.RedisTLSCert, Key: s.RedisTLSKey, SkipHostname: s.RedisTLSAnyName,
	}
}

// xds returns the control plane that provides the configuration. It returns the zero XDS if files do.
func (s *serveSettings) xds() (x server.XDS, err error) {
	if s.XDSServer == "" {
		return x, nil
	}
	x = server.XDS{
		Server: s.XDSServer, NodeID: s.XDSNodeID,
		TLS: s.XDSTLS, CA: s.XDSTLSCA, Cert: s.XDSTLSCert, Key: s.XDSTLSKey, ServerName: s.XDSTLSServerName,
		Overlay: s.XDSOverlay, MaxMessage: s.XDSMaxMessage, MinBackoff: s.XDSBackoff, MaxBackoff: s.XDSMaxBackoff,
		StartWithout: s.StartWithoutConfig,
	}
	if x.NodeMetadata, err = pairs("xds-node-metadata", "=:", s.XDSNodeMetadata); err != nil {
		return x, err
	}
	x.Headers, err = pairs("xds-header", ":", s.XDSHeader)
	return x, err
}

func (s *serveSettings) statsd(r reference) (statsd.Config, error) {
	tags, err := pairs("statsd-tags", "=:", s.StatsdTags)
	return statsd.Config{
		Address: s.StatsdAddress, Network: s.StatsdProtocol, Dog: s.StatsdFormat == "dogstatsd",
		Tags: tags, Every: s.StatsdInterval, Rewrites: r.Rewrites,
	}, err
}

func pairs(setting, separators, list string) (map[string]string, error) {
	pairs, ok := refenv.Pairs(list, separators)
	if !ok { // the message does not show the list, which may contain a secret
		return nil, fmt.Errorf("%s must be NAME%sVALUE, with commas between several", variableName(setting), separators[:1])
	}
	return pairs, nil
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

const ownPrefix = "RLSIDECAR_"

func variableName(setting string) string {
	return ownPrefix + strings.ToUpper(strings.ReplaceAll(setting, "-", "_"))
}

// nameVariables gives each setting its variable, and hides the flags of those that have only a variable.
func nameVariables(k *kong.Kong) error {
	return kong.Visit(k.Model, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok && flag.Tag.Has("setting") {
			flag.Tag.Envs = []string{variableName(flag.Name)}
			flag.Envs = flag.Tag.Envs
			flag.Hidden = flag.Tag.Get("setting") == "variable"
		}
		return next(nil)
	})
}
