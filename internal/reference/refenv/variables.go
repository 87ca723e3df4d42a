package refenv

import (
	"net/url"
	"regexp"
	"strings"
)

// Variable is a variable that a deployment of the reference server can set.
type Variable struct {
	Name string
	// Default is the default of the reference server. It applies if the program replaces that server.
	Default string
	// Sets is the setting of serve that takes the value. "" means that the variable sets none, or sets it together with
	// other variables.
	Sets string
	kind kind
	when when
	// Effect describes what else the variable does here.
	Effect string
	// Secret means that the value must not be shown.
	Secret bool
}

// kind is the form of a value that becomes the value of a setting.
type kind int

const (
	text kind = iota
	truth
	span  // a duration
	share // above 0, up to 1
	bytes
	level  // of the log
	format // of the log
	equalPairs
	colonPairs
)

// when is the condition under which a variable sets its setting. If it is not always, other variables turn the
// function on, and then defaults apply too.
type when int

const (
	always when = iota
	xds
	xdsTLS
	serverTLS
	redisTLS
)

// Shown returns value with its secret parts masked.
func (v Variable) Shown(value string) string {
	if v.Secret && value != "" {
		return "***"
	}
	return Masked(value)
}

var (
	inQuery = regexp.MustCompile(`(password=)[^&]*`)
	scheme  = regexp.MustCompile(`^[a-z]+(\+[a-z]+)?$`)
	// noSecret matches the part after the scheme of a URL without credentials: hosts with numeric ports, a path, a
	// query. In "redis://user:secret/0" the host is missing, so the port is the password.
	noSecret = regexp.MustCompile(`^((\[[0-9a-fA-F:.]+\]|[^][:@/?#, ]+)?(:[0-9]{1,5})?,?)*(/[^?#]*)?(\?.*)?$`)
	urls     = regexp.MustCompile(`[^\s"']*(://|@)[^\s"']*`)
)

// Masked hides the credentials in a URL or in a list of URLs. A password may contain any character, so everything
// before the last "@" is masked. A value without "://" and "@" has no credentials and stays as it is. A URL with an
// invalid scheme is masked as a whole.
func Masked(value string) string {
	var units []string // a comma only separates two values if a URL follows it
	for i, part := range strings.Split(value, ",") {
		if i > 0 && !strings.Contains(part, "://") {
			units[len(units)-1] += "," + part
		} else {
			units = append(units, part)
		}
	}
	for i, unit := range units {
		units[i] = inQuery.ReplaceAllString(maskedURL(unit), "$1***")
	}
	return strings.Join(units, ",")
}

func maskedURL(text string) string {
	start, rest, isURL := strings.Cut(text, "://")
	at := strings.LastIndex(text, "@")
	switch {
	case !isURL && at < 0, isURL && scheme.MatchString(start) && noSecret.MatchString(rest):
		return text
	case isURL && !scheme.MatchString(start):
		return "***"
	case isURL && at > len(start):
		return start + "://***" + text[at:]
	case isURL:
		return start + "://***"
	default:
		return "***" + text[at:]
	}
}

// MaskedText hides the credentials of all URLs in a message, and of text that may be a URL without its scheme.
func MaskedText(text string) string { return urls.ReplaceAllStringFunc(text, Masked) }

// Variables returns all variables that a deployment of the reference server can set.
func Variables() []Variable { return variables }

func byName(name string) Variable {
	for i := range variables {
		if variables[i].Name == name {
			return variables[i]
		}
	}
	panic("refenv: no variable " + url.QueryEscape(name)) // only a bug in this package can cause this
}

const (
	none     = "none: "
	memcache = none + "memcached is not supported"
	ownPool  = none + "all requests share a few connections"
)

var variables = []Variable{
	{Name: "RUNTIME_ROOT", Default: "/srv/runtime_data/current", Effect: "--config: all files under ROOT/SUBDIRECTORY/APPDIRECTORY, of any name"},
	{Name: "RUNTIME_SUBDIRECTORY", Effect: "part of --config"},
	{Name: "RUNTIME_APPDIRECTORY", Default: "config", Effect: "part of --config"},
	{Name: "RUNTIME_IGNOREDOTFILES", Default: "false", Effect: none + "files whose names start with a dot are never read"},
	{Name: "RUNTIME_WATCH_ROOT", Default: "true", Effect: none + "replaced links and changed files are both noticed"},
	{Name: "MERGE_DOMAIN_CONFIG", Default: "false", Effect: none + "a domain can always span several files"},
	{Name: "CONFIG_TYPE", Default: "FILE", Effect: "FILE or GRPC_XDS_SOTW"},
	{Name: "FORCE_START_WITHOUT_INITIAL_CONFIG", Default: "false", Sets: "start-without-config", kind: truth, when: xds},
	{Name: "CONFIG_GRPC_XDS_SERVER_URL", Default: "localhost:18000", Sets: "xds-server", when: xds},
	{Name: "CONFIG_GRPC_XDS_NODE_ID", Default: "default", Sets: "xds-node-id", when: xds},
	{Name: "CONFIG_GRPC_XDS_NODE_METADATA", Sets: "xds-node-metadata", kind: equalPairs, when: xds, Effect: "k=v,k=v"},
	{Name: "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", Sets: "xds-header", kind: colonPairs, when: xds, Effect: "k:v,k:v", Secret: true},
	{Name: "CONFIG_GRPC_XDS_SERVER_USE_TLS", Default: "false", Sets: "xds-tls", kind: truth, when: xds, Effect: "whether CONFIG_GRPC_XDS_…_TLS_… have an effect"},
	{Name: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", Sets: "xds-tls-ca", when: xdsTLS},
	{Name: "CONFIG_GRPC_XDS_SERVER_TLS_SAN", Sets: "xds-tls-server-name", when: xdsTLS},
	{Name: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", Sets: "xds-tls-cert", when: xdsTLS},
	{Name: "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", Sets: "xds-tls-key", when: xdsTLS},
	{Name: "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", Default: "3s", Effect: none + "the pauses after a failed stream apply"},
	{Name: "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", Default: "10s", Sets: "xds-backoff", kind: span, when: xds},
	{Name: "XDS_CLIENT_BACKOFF_MAX_INTERVAL", Default: "60s", Sets: "xds-max-backoff", kind: span, when: xds},
	{Name: "XDS_CLIENT_BACKOFF_RANDOM_FACTOR", Default: "0.5", Effect: none + "pauses double, with jitter"},
	{Name: "XDS_CLIENT_BACKOFF_JITTER", Default: "true", Effect: none + "pauses always have jitter"},
	{Name: "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", Default: "0", Sets: "xds-max-message", kind: bytes, when: xds},

	{Name: "HOST", Default: "0.0.0.0", Effect: "host of --http-listen, when started as ratelimit"},
	{Name: "PORT", Default: "8080", Effect: "port of --http-listen"},
	{Name: "GRPC_HOST", Default: "0.0.0.0", Effect: "host of --grpc-listen"},
	{Name: "GRPC_PORT", Default: "8081", Effect: "port of --grpc-listen"},
	{Name: "GRPC_UDS", Effect: "--grpc-listen, as a Unix socket"},
	{Name: "DEBUG_HOST", Default: "0.0.0.0", Effect: "host of --admin-listen; 127.0.0.1 unless RLSIDECAR_ADMIN_TOKEN is set"},
	{Name: "DEBUG_PORT", Default: "6070", Effect: "port of --admin-listen"},
	{Name: "GRPC_MAX_CONNECTION_AGE", Default: "24h", Sets: "grpc-max-connection-age", kind: span},
	{Name: "GRPC_MAX_CONNECTION_AGE_GRACE", Default: "1h", Sets: "grpc-max-connection-age-grace", kind: span},
	{Name: "GRPC_SERVER_USE_TLS", Default: "false", Effect: "whether GRPC_SERVER_TLS_… and GRPC_CLIENT_TLS_… have an effect"},
	{Name: "GRPC_SERVER_TLS_CERT", Sets: "tls-cert", when: serverTLS},
	{Name: "GRPC_SERVER_TLS_KEY", Sets: "tls-key", when: serverTLS},
	{Name: "GRPC_CLIENT_TLS_CACERT", Sets: "tls-client-ca", when: serverTLS},
	{Name: "GRPC_CLIENT_TLS_SAN", Effect: "--tls-client-name"},
	{Name: "GRPC_SERVER_TLS_CA_CERT", Effect: none + "Envoy Gateway sets it, and the reference server does not read it: clients need no certificate"},
	{Name: "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", Default: "false", Effect: none + "this is always so"},
	{Name: "LOG_LEVEL", Default: "WARN", Sets: "log-level", kind: level},
	{Name: "LOG_FORMAT", Default: "text", Sets: "log-format", kind: format, Effect: "the keys of json differ"},

	{Name: "BACKEND_TYPE", Default: "redis", Effect: "redis or memory; memcache is rejected"},
	{Name: "REDIS_TYPE", Default: "SINGLE", Effect: "form of --redis-url"},
	{Name: "REDIS_SOCKET_TYPE", Default: "unix", Effect: "form of --redis-url; without it, REDIS_URL shows the form"},
	{Name: "REDIS_URL", Default: "/var/run/nutcracker/ratelimit.sock", Effect: "--redis-url; without it, and without REDIS_SOCKET_TYPE=unix, buckets are in memory"},
	{Name: "REDIS_AUTH", Effect: "credentials of --redis-url", Secret: true},
	{Name: "REDIS_SENTINEL_AUTH", Effect: "credentials of the Sentinels", Secret: true},
	{Name: "REDIS_TLS", Default: "false", Effect: "rediss:// in --redis-url; whether REDIS_TLS_… have an effect"},
	{Name: "REDIS_TLS_CACERT", Sets: "redis-tls-ca", when: redisTLS},
	{Name: "REDIS_TLS_CLIENT_CERT", Sets: "redis-tls-cert", when: redisTLS},
	{Name: "REDIS_TLS_CLIENT_KEY", Sets: "redis-tls-key", when: redisTLS},
	{Name: "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", Default: "false", Sets: "redis-tls-skip-hostname", kind: truth, when: redisTLS},
	{Name: "REDIS_TIMEOUT", Default: "10s", Effect: none + "it bounds only connecting; --backend-timeout bounds every call"},
	{Name: "REDIS_POOL_SIZE", Default: "10", Effect: ownPool},
	{Name: "REDIS_POOL_ON_EMPTY_BEHAVIOR", Default: "WAIT", Effect: ownPool},
	{Name: "REDIS_PIPELINE_WINDOW", Default: "0", Effect: none + "requests share calls without waiting"},
	{Name: "REDIS_PIPELINE_LIMIT", Default: "0", Effect: none + "requests share calls without waiting"},
	{Name: "REDIS_CLUSTER_PIPELINE_PARALLELISM", Default: "1", Effect: none + "nodes are always called at the same time"},
	{Name: "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", Default: "false", Effect: none + "on_backend_failure decides while Redis is unreachable"},
	{Name: "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", Default: "false", Effect: none + "failovers are always followed"},
	{Name: "REDIS_STARTUP_INITIAL_INTERVAL", Default: "1s", Effect: none + "the start waits at most 3s for Redis"},
	{Name: "REDIS_STARTUP_MAX_INTERVAL", Default: "30s", Effect: none + "the start waits at most 3s for Redis"},
	{Name: "REDIS_STARTUP_MAX_ELAPSED_TIME", Default: "0", Effect: none + "the start waits at most 3s for Redis"},
	{Name: "REDIS_PERSECOND", Default: "false", Effect: "--redis-per-second-url; whether REDIS_PERSECOND_… have an effect"},
	{Name: "REDIS_PERSECOND_SOCKET_TYPE", Default: "unix", Effect: "form of --redis-per-second-url"},
	{Name: "REDIS_PERSECOND_TYPE", Default: "SINGLE", Effect: "form of --redis-per-second-url"},
	{Name: "REDIS_PERSECOND_URL", Default: "/var/run/nutcracker/ratelimitpersecond.sock", Effect: "--redis-per-second-url"},
	{Name: "REDIS_PERSECOND_AUTH", Effect: "credentials of --redis-per-second-url", Secret: true},
	{Name: "REDIS_PERSECOND_SENTINEL_AUTH", Effect: "credentials of its Sentinels", Secret: true},
	{Name: "REDIS_PERSECOND_TLS", Default: "false", Effect: "rediss:// in --redis-per-second-url; the files are those of REDIS_TLS_…"},
	{Name: "REDIS_PERSECOND_TIMEOUT", Default: "10s", Effect: none + "--backend-timeout bounds every call"},
	{Name: "REDIS_PERSECOND_POOL_SIZE", Default: "10", Effect: ownPool},
	{Name: "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", Default: "WAIT", Effect: ownPool},
	{Name: "REDIS_PERSECOND_PIPELINE_WINDOW", Default: "0", Effect: none + "requests share calls without waiting"},
	{Name: "REDIS_PERSECOND_PIPELINE_LIMIT", Default: "0", Effect: none + "requests share calls without waiting"},
	{Name: "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", Default: "1", Effect: none + "nodes are always called at the same time"},
	{Name: "CACHE_KEY_PREFIX", Effect: "prefix of --redis-key-prefix"},
	{Name: "EXPIRATION_JITTER_MAX_SECONDS", Default: "300", Effect: none + "a bucket expires when it equals a new one"},
	{Name: "LOCAL_CACHE_SIZE_IN_BYTES", Default: "0", Effect: none + "the denial cache is always on"},
	{Name: "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", Default: "false", Effect: "true: consume is together, even if each is configured; false: as configured"},
	{Name: "MEMCACHE_HOST_PORT", Effect: memcache},
	{Name: "MEMCACHE_SRV", Effect: memcache},
	{Name: "MEMCACHE_SRV_REFRESH", Default: "0", Effect: memcache},
	{Name: "MEMCACHE_MAX_IDLE_CONNS", Default: "2", Effect: memcache},
	{Name: "MEMCACHE_TLS", Default: "false", Effect: memcache},
	{Name: "MEMCACHE_TLS_CLIENT_CERT", Effect: memcache},
	{Name: "MEMCACHE_TLS_CLIENT_KEY", Effect: memcache},
	{Name: "MEMCACHE_TLS_CACERT", Effect: memcache},
	{Name: "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", Default: "false", Effect: memcache},

	{Name: "SHADOW_MODE", Default: "false", Sets: "shadow-mode", kind: truth},
	{Name: "QUOTA_MODE", Default: "false", Sets: "quota-mode", kind: truth},
	{Name: "LIMIT_RESPONSE_HEADERS_ENABLED", Default: "false", Sets: "response-headers", kind: truth},
	{Name: "LIMIT_LIMIT_HEADER", Default: "RateLimit-Limit", Sets: "limit-header"},
	{Name: "LIMIT_REMAINING_HEADER", Default: "RateLimit-Remaining", Sets: "remaining-header"},
	{Name: "LIMIT_RESET_HEADER", Default: "RateLimit-Reset", Sets: "reset-header"},
	{Name: "RESPONSE_DYNAMIC_METADATA", Default: "false", Sets: "reference-metadata", kind: truth},

	{Name: "USE_PROMETHEUS", Default: "false", Effect: "whether PROMETHEUS_ADDR and PROMETHEUS_PATH have an effect"},
	{Name: "PROMETHEUS_ADDR", Default: ":9090", Effect: "--metrics-listen"},
	{Name: "PROMETHEUS_PATH", Default: "/metrics", Effect: "RLSIDECAR_METRICS_PATH"},
	{Name: "PROMETHEUS_MAPPER_YAML", Effect: none + "names are always those of the default mapping"},
	{Name: "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", Default: "false", Effect: none + "times are in seconds"},
	{Name: "NEAR_LIMIT_RATIO", Default: "0.8", Sets: "near-limit-ratio", kind: share},
	{Name: "USE_STATSD", Default: "true", Effect: "send metrics to StatsD; the default is true unless USE_DOG_STATSD or USE_PROMETHEUS is"},
	{Name: "STATSD_HOST", Default: "localhost", Effect: "host of --statsd-address"},
	{Name: "STATSD_PORT", Default: "8125", Effect: "port of --statsd-address"},
	{Name: "STATSD_PROTOCOL", Default: "tcp", Effect: "RLSIDECAR_STATSD_PROTOCOL; DogStatsD always uses udp"},
	{Name: "USE_DOG_STATSD", Default: "false", Effect: "--statsd-format dogstatsd"},
	{Name: "USE_DOG_STATSD_MOGRIFIERS", Effect: "names of rewrites, tried in this order, with DOG_STATSD_MOGRIFIER_<NAME>_PATTERN, _NAME and _TAGS"},
	{Name: "EXTRA_TAGS", Effect: "RLSIDECAR_STATSD_TAGS"},
	{Name: "STATS_FLUSH_INTERVAL", Default: "10s", Effect: "RLSIDECAR_STATSD_INTERVAL; has no effect on Prometheus"},
	{Name: "DISABLE_STATS", Default: "false", Effect: "true: no StatsD, and no PROMETHEUS_ADDR"},
	{Name: "TRACING_ENABLED", Default: "false", Effect: "RLSIDECAR_TRACING; whether the other TRACING_… have an effect"},
	{Name: "TRACING_SERVICE_NAME", Default: "RateLimit", Effect: "OTEL_SERVICE_NAME"},
	{Name: "TRACING_SERVICE_NAMESPACE", Effect: "service.namespace in OTEL_RESOURCE_ATTRIBUTES"},
	{Name: "TRACING_SERVICE_INSTANCE_ID", Effect: "service.instance.id in OTEL_RESOURCE_ATTRIBUTES"},
	{Name: "TRACING_EXPORTER_PROTOCOL", Default: "http", Effect: "OTEL_EXPORTER_OTLP_PROTOCOL"},
	{Name: "TRACING_SAMPLING_RATE", Default: "1", Effect: "OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG"},
}
