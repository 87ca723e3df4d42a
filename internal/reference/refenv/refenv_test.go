package refenv

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/tracing"
)

func with(words ...string) map[string]string {
	env := map[string]string{}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		env[name] = value
	}
	return env
}

// defaults returns the flags of a program that replaces the reference server, if no variable is set.
func defaults() map[string]string {
	return map[string]string{
		"config":      "/srv/runtime_data/current/config/**",
		"grpc-listen": ":8081", "http-listen": ":8080", "admin-listen": "127.0.0.1:6070",
		"grpc-max-connection-age": "24h0m0s", "grpc-max-connection-age-grace": "1h0m0s",
		"response-headers": "false", "reference-metadata": "false", "shadow-mode": "false", "quota-mode": "false",
		"limit-header": "RateLimit-Limit", "remaining-header": "RateLimit-Remaining", "reset-header": "RateLimit-Reset",
		"near-limit-ratio": "0.8", "log-level": "warn", "log-format": "text",
		"statsd-address": "localhost:8125", "statsd-protocol": "tcp", "statsd-interval": "10s",
	}
}

func TestNothingSetMeansNothing(t *testing.T) {
	empty := map[string]string{"HOST": "mybox", "PATH": "/bin"} // some shells set HOST
	for _, v := range Variables() {
		if v.Name != "HOST" {
			empty[v.Name] = ""
		}
	}
	s, err := Read(empty, false)
	if err != nil || len(s.Values) > 0 || len(s.Warnings) > 0 {
		t.Errorf("got %+v, %v; want no values or warnings", s, err)
	}
}

func TestEveryVariableOfTheReferenceServerIsListed(t *testing.T) {
	redis := "SOCKET_TYPE TYPE URL POOL_SIZE AUTH TLS SENTINEL_AUTH PIPELINE_WINDOW PIPELINE_LIMIT CLUSTER_PIPELINE_PARALLELISM TIMEOUT POOL_ON_EMPTY_BEHAVIOR"
	listed := map[string]bool{}
	for _, v := range Variables() {
		if listed[v.Name] = true; v.Effect == "" && v.Sets == "" {
			t.Errorf("%s has no effect", v.Name)
		}
	}
	for prefix, names := range map[string]string{
		"": "HOST PORT NEAR_LIMIT_RATIO CACHE_KEY_PREFIX BACKEND_TYPE EXTRA_TAGS STATS_FLUSH_INTERVAL DISABLE_STATS " +
			"EXPIRATION_JITTER_MAX_SECONDS LOCAL_CACHE_SIZE_IN_BYTES STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT MERGE_DOMAIN_CONFIG " +
			"SHADOW_MODE QUOTA_MODE RESPONSE_DYNAMIC_METADATA CONFIG_TYPE FORCE_START_WITHOUT_INITIAL_CONFIG HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
		"DEBUG_":    "HOST PORT",
		"LOG_":      "LEVEL FORMAT",
		"GRPC_":     "UDS HOST PORT MAX_CONNECTION_AGE MAX_CONNECTION_AGE_GRACE SERVER_USE_TLS SERVER_TLS_CERT SERVER_TLS_KEY CLIENT_TLS_CACERT CLIENT_TLS_SAN",
		"RUNTIME_":  "ROOT SUBDIRECTORY APPDIRECTORY IGNOREDOTFILES WATCH_ROOT",
		"USE_":      "DOG_STATSD DOG_STATSD_MOGRIFIERS STATSD PROMETHEUS",
		"STATSD_":   "HOST PORT PROTOCOL",
		"LIMIT_":    "RESPONSE_HEADERS_ENABLED LIMIT_HEADER REMAINING_HEADER RESET_HEADER",
		"TRACING_":  "ENABLED SERVICE_NAME SERVICE_NAMESPACE SERVICE_INSTANCE_ID EXPORTER_PROTOCOL SAMPLING_RATE",
		"MEMCACHE_": "HOST_PORT SRV SRV_REFRESH MAX_IDLE_CONNS TLS TLS_CLIENT_CERT TLS_CLIENT_KEY TLS_CACERT TLS_SKIP_HOSTNAME_VERIFICATION",

		"PROMETHEUS_":  "ADDR PATH MAPPER_YAML RESPONSE_TIME_AS_MILLISECONDS",
		"XDS_CLIENT_":  "BACKOFF_INITIAL_INTERVAL BACKOFF_MAX_INTERVAL BACKOFF_RANDOM_FACTOR BACKOFF_JITTER MAX_MSG_SIZE_IN_BYTES",
		"CONFIG_GRPC_": "XDS_NODE_ID XDS_NODE_METADATA XDS_SERVER_URL XDS_SERVER_CONNECT_RETRY_INTERVAL XDS_CLIENT_ADDITIONAL_HEADERS XDS_SERVER_USE_TLS XDS_CLIENT_TLS_CERT XDS_CLIENT_TLS_KEY XDS_SERVER_TLS_CACERT XDS_SERVER_TLS_SAN",
		"REDIS_": redis + " PERSECOND TLS_CLIENT_CERT TLS_CLIENT_KEY TLS_CACERT TLS_SKIP_HOSTNAME_VERIFICATION " +
			"HEALTH_CHECK_ACTIVE_CONNECTION STARTUP_INITIAL_INTERVAL STARTUP_MAX_INTERVAL STARTUP_MAX_ELAPSED_TIME CLOSE_CONNECTION_ON_READONLY_ERROR",
		"REDIS_PERSECOND_": redis,
	} {
		for name := range strings.FieldsSeq(names) {
			if !listed[prefix+name] {
				t.Errorf("Variables lacks %s%s", prefix, name)
			}
		}
	}
}

func TestDefaultsOfTheReferenceServer(t *testing.T) {
	s, err := Read(nil, true)
	if err != nil || !maps.Equal(s.Values, defaults()) || len(s.Warnings) != 1 || !strings.HasPrefix(s.Warnings[0], "REDIS_URL is not set") {
		t.Errorf("got %v, %v, %v; want the defaults, and one warning about REDIS_URL", s.Values, s.Warnings, err)
	}
}

// The expected flags are those that differ from defaults. "" means that the flag is not set.
func TestMeaningOfSettings(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit":          {"config": "/data/ratelimit/config/**"},
		"RUNTIME_ROOT=/a,b RUNTIME_APPDIRECTORY=limits":              {"config": `/a\,b/limits/**`},
		"HOST=10.0.0.1 PORT=80 GRPC_PORT=81":                         {"http-listen": "10.0.0.1:80", "grpc-listen": ":81"},
		"HOST=:: GRPC_HOST=::1":                                      {"http-listen": "[::]:8080", "grpc-listen": "[::1]:8081"},
		"GRPC_UDS=/run/rl.sock GRPC_PORT=81":                         {"grpc-listen": "unix:///run/rl.sock"},
		"DEBUG_PORT=6071 DEBUG_HOST=0.0.0.0":                         {"admin-listen": "127.0.0.1:6071"},
		"DEBUG_PORT=6071 RLSIDECAR_ADMIN_TOKEN=x":                    {"admin-listen": ":6071"},
		"DEBUG_PORT=6071 RLSIDECAR_ADMIN_TOKEN_FILE=/x":              {"admin-listen": ":6071"},
		"DEBUG_HOST=localhost":                                       {"admin-listen": "localhost:6070"},
		"LOG_LEVEL=TRACE LOG_FORMAT=json":                            {"log-level": "debug", "log-format": "json"},
		"LOG_LEVEL=fatal":                                            {"log-level": "error"},
		"SHADOW_MODE=true QUOTA_MODE=1":                              {"shadow-mode": "true", "quota-mode": "true"},
		"LIMIT_RESPONSE_HEADERS_ENABLED=T LIMIT_LIMIT_HEADER":        {"response-headers": "true"},
		"LIMIT_RESET_HEADER=X-Reset":                                 {"reset-header": "X-Reset"},
		"USE_PROMETHEUS=true":                                        {"metrics-listen": ":9090", "metrics-path": "/metrics", "statsd-address": "", "statsd-protocol": "", "statsd-interval": ""},
		"USE_PROMETHEUS=true USE_STATSD=true PROMETHEUS_ADDR=:19001": {"metrics-listen": ":19001", "metrics-path": "/metrics"},
		"USE_STATSD=false":                                           {"statsd-address": "", "statsd-protocol": "", "statsd-interval": ""},
		"DISABLE_STATS=true USE_PROMETHEUS=true":                     {"statsd-address": "", "statsd-protocol": "", "statsd-interval": ""},
		"STATSD_HOST=::1 STATSD_PORT=9125 STATSD_PROTOCOL=UDP STATS_FLUSH_INTERVAL=1s EXTRA_TAGS=b:2,a:1:0": {
			"statsd-address": "[::1]:9125", "statsd-protocol": "udp", "statsd-interval": "1s", "statsd-tags": "b:2,a:1:0",
		},
		"TRACING_ENABLED=true":                         {"tracing": "true"},
		"TRACING_SERVICE_NAME=x":                       {},
		"USE_DOG_STATSD=true STATSD_HOST=dog":          {"statsd-address": "dog:8125", "statsd-protocol": "udp", "statsd-format": "dogstatsd"},
		"PROMETHEUS_ADDR=:19001 NEAR_LIMIT_RATIO=0.5":  {"near-limit-ratio": "0.5"},
		"CACHE_KEY_PREFIX=edge:":                       {"redis-key-prefix": "edge:rl:"},
		"GRPC_SERVER_TLS_CERT=c GRPC_SERVER_TLS_KEY=k": {},
		"GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=c GRPC_SERVER_TLS_KEY=k GRPC_CLIENT_TLS_SAN=x":                          {"tls-cert": "c", "tls-key": "k"},
		"GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=c GRPC_SERVER_TLS_KEY=k GRPC_CLIENT_TLS_CACERT=a GRPC_CLIENT_TLS_SAN=x": {"tls-cert": "c", "tls-key": "k", "tls-client-ca": "a", "tls-client-name": "x"},
		"GRPC_MAX_CONNECTION_AGE=5m":        {"grpc-max-connection-age": "5m0s"},
		"BACKEND_TYPE=memory REDIS_URL=h:1": {},

		"REDIS_URL=h:1":                                {"redis-url": "redis://h:1"},
		"REDIS_URL=h:1 REDIS_SOCKET_TYPE=tcp":          {"redis-url": "redis://h:1"},
		"REDIS_URL=/run/r.sock":                        {"redis-url": "unix:///run/r.sock"},
		"REDIS_URL=/run/r.sock REDIS_AUTH=p@s":         {"redis-url": "unix://:p%40s@/run/r.sock"},
		"REDIS_SOCKET_TYPE=unix":                       {"redis-url": "unix:///var/run/nutcracker/ratelimit.sock"},
		"REDIS_URL=redis://u:p@h:1/2 REDIS_AUTH=other": {"redis-url": "redis://u:p@h:1/2"},
		"REDIS_URL=redis://h:1 REDIS_AUTH=u:p:q":       {"redis-url": "redis://u:p%3Aq@h:1"},
		"REDIS_URL=rediss://h:1":                       {"redis-url": "rediss://h:1"},
		"REDIS_URL=h:1 REDIS_TLS=true REDIS_TLS_CACERT=a REDIS_TLS_CLIENT_CERT=c REDIS_TLS_CLIENT_KEY=k REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true": {
			"redis-url": "rediss://h:1", "redis-tls-ca": "a", "redis-tls-cert": "c", "redis-tls-key": "k", "redis-tls-skip-hostname": "true",
		},
		"REDIS_URL=h:1 REDIS_PERSECOND=true": {"redis-url": "redis://h:1", "redis-per-second-url": "unix:///var/run/nutcracker/ratelimitpersecond.sock"},
		"REDIS_URL=h:1 REDIS_PERSECOND=true REDIS_PERSECOND_URL=g:2 REDIS_PERSECOND_AUTH=u:p REDIS_PERSECOND_TLS=true REDIS_TLS_CACERT=a": {
			"redis-url": "redis://h:1", "redis-per-second-url": "rediss://u:p@g:2", "redis-tls-ca": "a", "redis-tls-skip-hostname": "false",
		},
		"REDIS_URL=h:1 REDIS_PERSECOND=true REDIS_PERSECOND_TYPE=sentinel REDIS_PERSECOND_URL=main,s:1 REDIS_PERSECOND_SENTINEL_AUTH=q": {
			"redis-url": "redis://h:1", "redis-per-second-url": "redis+sentinel://s:1/main?sentinel_password=q",
		},
		"REDIS_URL=h:1 REDIS_PERSECOND_URL=g:2": {"redis-url": "redis://h:1"},
		"REDIS_URL=h:1 REDIS_TLS_CACERT=a":      {"redis-url": "redis://h:1"},
		"REDIS_TYPE=sentinel REDIS_URL=main,s1:1,s2:2 REDIS_AUTH=p REDIS_SENTINEL_AUTH=q&": {
			"redis-url": "redis+sentinel://:p@s1:1,s2:2/main?sentinel_password=q%26",
		},
		"REDIS_TYPE=SENTINEL REDIS_URL=main,s1:1 REDIS_TLS=true REDIS_SENTINEL_AUTH=u:q": {
			"redis-url": "rediss+sentinel://s1:1/main?sentinel_password=q&sentinel_username=u", "redis-tls-skip-hostname": "false",
		},
		"REDIS_TYPE=cluster REDIS_URL=a:1,b:2":                      {"redis-url": "redis+cluster://a:1,b:2"},
		"REDIS_TYPE=CLUSTER REDIS_URL=rediss://u:p@a:1,redis://b:2": {"redis-url": "rediss+cluster://u:p@a:1,b:2"},

		"NEAR_LIMIT_RATIO=1":            {"near-limit-ratio": "1"},
		"GRPC_MAX_CONNECTION_AGE=0s":    {"grpc-max-connection-age": "0s"},
		"PORT=65535":                    {"http-listen": ":65535"},
		"TRACING_SAMPLING_RATE=0":       {},
		"REDIS_URL=unix:///run/r.sock":  {"redis-url": "unix:///run/r.sock"},
		"REDIS_URL=unix://u:p@/r.sock":  {"redis-url": "unix://u:p@/r.sock"},
		"REDIS_URL=redis://@h:1":        {"redis-url": "redis://@h:1"},
		"REDIS_URL=h:1 REDIS_TLS=false": {"redis-url": "redis://h:1"},
		"DEBUG_HOST=::1":                {"admin-listen": "[::1]:6070"},
	} {
		s, err := Read(with(strings.Fields(text)...), true)
		expected := defaults()
		maps.Copy(expected, want)
		maps.DeleteFunc(expected, func(_, value string) bool { return value == "" })
		if got := s.Values; err != nil || !maps.Equal(got, expected) {
			t.Errorf("%s: error %v, want none\n got %v\nwant %v", text, err, got, expected)
		}
	}
}

func TestServeUsesOnlyVariablesThatAreSet(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"PORT=80":                {"http-listen": "127.0.0.1:80"},
		"GRPC_HOST=0.0.0.0":      {"grpc-listen": "0.0.0.0:8081"},
		"RUNTIME_SUBDIRECTORY=x": {},
		"RUNTIME_ROOT=/r":        {"config": "/r/config/**"},
		"REDIS_URL=redis://h:1":  {"redis-url": "redis://h:1"},
		"LOG_LEVEL=ERROR":        {"log-level": "error"},
		"SHADOW_MODE=false":      {"shadow-mode": "false"},
		"USE_STATSD=false":       {},
		"STATSD_HOST=h":          {},
		"USE_STATSD=true":        {"statsd-address": "localhost:8125", "statsd-protocol": "tcp", "statsd-interval": "10s"},
		"REDIS_SOCKET_TYPE=tcp":  {},
		"DEBUG_HOST=127.0.0.1":   {"admin-listen": "127.0.0.1:6070"},
	} {
		s, err := Read(with(strings.Fields(text)...), false)
		if got := s.Values; err != nil || !maps.Equal(got, want) || len(s.Warnings) > 0 {
			t.Errorf("%s: error %v, flags %v, warnings %v; want only the flags %v", text, err, got, s.Warnings, want)
		}
	}
}

func TestStoppingToCountMeansConsumingTogether(t *testing.T) {
	for value, want := range map[string]bool{"": false, "false": false, "true": true, "1": true} {
		for _, asServer := range []bool{false, true} {
			s, err := Read(map[string]string{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": value}, asServer)
			if err != nil || s.ConsumeTogether != want {
				t.Errorf("%q: got %t, %v; want %t", value, s.ConsumeTogether, err, want)
			}
		}
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"BACKEND_TYPE=memcache": "BACKEND_TYPE=memcache: memcached cannot decide and charge in one step, so limits in it do not hold; set redis (with REDIS_URL) or memory",
		"REDIS_PERSECOND=true":  "REDIS_PERSECOND=true: REDIS_URL, for the limits that are not per second, is missing; set REDIS_URL, or remove REDIS_PERSECOND",
		"REDIS_URL=h:1 REDIS_PERSECOND=true REDIS_PERSECOND_URL=a:1,b:2": "REDIS_PERSECOND_URL=a:1,b:2: these are several addresses; set the TYPE to sentinel or cluster",
		"BACKEND_TYPE=disk":         "BACKEND_TYPE=disk: write redis, memory, memcache",
		"PORT=http":                 "PORT=http: write a number from 0 to 65535",
		"PORT=65536":                "PORT=65536: write a number from 0 to 65535",
		"SHADOW_MODE=maybe":         "SHADOW_MODE=maybe: write true or false",
		"GRPC_MAX_CONNECTION_AGE=5": "GRPC_MAX_CONNECTION_AGE=5: write a duration, such as 30s or 24h",
		"LOG_LEVEL=loud":            "LOG_LEVEL=loud: write panic, fatal, error, warn, warning, info, debug, trace",
		"NEAR_LIMIT_RATIO=2":        "NEAR_LIMIT_RATIO=2: write a share above 0, up to 1, such as 0.8",
		"CACHE_KEY_PREFIX={a}":      "CACHE_KEY_PREFIX={a}: braces choose cluster slots and cannot be part of it; remove them",
		"GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=c": "GRPC_SERVER_USE_TLS=true: GRPC_SERVER_TLS_KEY is not set; name a PEM file",
		"REDIS_URL=h:1 REDIS_SOCKET_TYPE=unix":            "REDIS_URL=h:1: the SOCKET_TYPE is unix, and this is no absolute path; set it to tcp for host:port",
		"REDIS_URL=h:1,g:1":                               "REDIS_URL=h:1,g:1: these are several addresses; set the TYPE to sentinel or cluster",
		"REDIS_URL=http://u:p@h":                          "REDIS_URL=http://***@h: write host:port, a path, or redis://[user:password@]host:port/db",
		"REDIS_URL=s1:1,s2:2 REDIS_TYPE=sentinel":         "REDIS_URL=s1:1,s2:2: write the name of the master, then the Sentinels: main,host:port,host:port",
		"REDIS_URL=a:1,,b:1 REDIS_TYPE=cluster":           "REDIS_URL=a:1,,b:1: write host:port,host:port",
		"USE_STATSD=true USE_DOG_STATSD=true":             "USE_DOG_STATSD=true: USE_STATSD is true too; set it to false",
		"STATS_FLUSH_INTERVAL=0s":                         "STATS_FLUSH_INTERVAL=0s: write a duration above 0, such as 10s",
		"STATSD_PROTOCOL=unix":                            "STATSD_PROTOCOL=unix: write tcp, udp",
		"EXTRA_TAGS=a":                                    "EXTRA_TAGS=a: write name:value, with commas between several",
		"USE_DOG_STATSD=true USE_DOG_STATSD_MOGRIFIERS=A": "USE_DOG_STATSD_MOGRIFIERS=A: DOG_STATSD_MOGRIFIER_A_PATTERN is not set; write a regular expression for the names that it changes",
		"USE_DOG_STATSD=true USE_DOG_STATSD_MOGRIFIERS=A DOG_STATSD_MOGRIFIER_A_PATTERN=( DOG_STATSD_MOGRIFIER_A_NAME=x":                               "USE_DOG_STATSD_MOGRIFIERS=A: DOG_STATSD_MOGRIFIER_A_PATTERN: error parsing regexp: missing closing ): `(`",
		"USE_DOG_STATSD=true USE_DOG_STATSD_MOGRIFIERS=A DOG_STATSD_MOGRIFIER_A_PATTERN=x":                                                             "USE_DOG_STATSD_MOGRIFIERS=A: DOG_STATSD_MOGRIFIER_A_NAME is not set; write the new name, in which $1 is the text that the first group matched",
		"USE_DOG_STATSD=true USE_DOG_STATSD_MOGRIFIERS=A DOG_STATSD_MOGRIFIER_A_PATTERN=x DOG_STATSD_MOGRIFIER_A_NAME=y DOG_STATSD_MOGRIFIER_A_TAGS=z": `USE_DOG_STATSD_MOGRIFIERS=A: DOG_STATSD_MOGRIFIER_A_TAGS has "z"; write tag:value,tag:value`,
		"TRACING_SAMPLING_RATE=2":                                                 "TRACING_SAMPLING_RATE=2: write a share from 0 to 1, such as 0.1",
		"TRACING_EXPORTER_PROTOCOL=zipkin":                                        "TRACING_EXPORTER_PROTOCOL=zipkin: write http, grpc",
		"CONFIG_TYPE=etcd":                                                        "CONFIG_TYPE=etcd: write file, grpc_xds_sotw",
		"CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_NODE_METADATA=a":               "CONFIG_GRPC_XDS_NODE_METADATA=a: write name=value, with commas between several",
		"CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=key": "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=***: write name:value, with commas between several",
	} {
		_, err := Read(with(strings.Fields(text)...), true)
		if err == nil || !slices.Contains(strings.Split(err.Error(), "\n"), want) {
			t.Errorf("%s: %v\nwant %s", text, err, want)
		}
	}
}

// envoyGateway has all variables that Envoy Gateway v1.9 sets if all of its options are on.
var envoyGateway = []string{
	"RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_IGNOREDOTFILES=true", "RUNTIME_WATCH_ROOT=false",
	"LOG_LEVEL=info", "USE_STATSD=false", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001",
	"CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit", "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=/certs/tls.crt",
	"GRPC_SERVER_TLS_KEY=/certs/tls.key", "GRPC_SERVER_TLS_CA_CERT=/certs/ca.crt", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
	"CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/certs/tls.crt", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/certs/tls.key",
	"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/certs/ca.crt", "FORCE_START_WITHOUT_INITIAL_CONFIG=true", "REDIS_SOCKET_TYPE=tcp",
	"REDIS_URL=redis:6379", "REDIS_TLS=true", "REDIS_TLS_CLIENT_CERT=/redis-certs/tls.crt", "REDIS_TLS_CLIENT_KEY=/redis-certs/tls.key",
	"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=:19001", "PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml",
	"TRACING_SERVICE_NAME=x", "TRACING_SERVICE_NAMESPACE=y", "TRACING_SERVICE_INSTANCE_ID=z", "TRACING_SAMPLING_RATE=0.5",
	"OTEL_EXPORTER_OTLP_ENDPOINT=http://otel:4318",
}

func TestEnvoyGateway(t *testing.T) {
	s, err := Read(with(envoyGateway...), true)
	expected := defaults()
	for _, not := range []string{"config", "statsd-address", "statsd-protocol", "statsd-interval"} {
		delete(expected, not)
	}
	maps.Copy(expected, map[string]string{
		"log-level": "info", "tls-cert": "/certs/tls.crt", "tls-key": "/certs/tls.key",
		"redis-url": "rediss://redis:6379", "redis-tls-cert": "/redis-certs/tls.crt", "redis-tls-key": "/redis-certs/tls.key",
		"redis-tls-skip-hostname": "false", "metrics-listen": ":19001", "metrics-path": "/metrics",
		"xds-server": "envoy-gateway:18001", "xds-node-id": "envoy-ratelimit", "xds-tls": "true", "xds-tls-ca": "/certs/ca.crt",
		"xds-tls-cert": "/certs/tls.crt", "xds-tls-key": "/certs/tls.key", "xds-backoff": "10s", "xds-max-backoff": "1m0s",
		"xds-max-message": "0", "start-without-config": "true",
	})
	if err != nil || !maps.Equal(s.Values, expected) || len(s.Warnings) > 0 {
		t.Errorf("got %v %q %v; want %v and no warnings", s.Values, s.Warnings, err, expected)
	}
	known := map[string]bool{"OTEL_EXPORTER_OTLP_ENDPOINT": true}
	for _, v := range Variables() {
		known[v.Name] = true
	}
	for _, word := range envoyGateway {
		if name, _, _ := strings.Cut(word, "="); !known[name] {
			t.Errorf("Variables lacks %s", name)
		}
	}
}

func TestTracing(t *testing.T) {
	for _, c := range []struct {
		env      string
		asServer bool
		want     tracing.Config
	}{
		{"TRACING_SERVICE_NAME=x", true, tracing.Config{}},
		{"TRACING_ENABLED=true", true, tracing.Config{Protocol: "http", Share: new(1.0), Service: "RateLimit"}},
		{"TRACING_ENABLED=true", false, tracing.Config{Protocol: "http", Share: new(1.0)}},
		{"TRACING_ENABLED=true OTEL_SERVICE_NAME=x", true, tracing.Config{Protocol: "http", Share: new(1.0)}},
		{"TRACING_ENABLED=true TRACING_SERVICE_NAME=x OTEL_SERVICE_NAME=y", true, tracing.Config{Protocol: "http", Share: new(1.0), Service: "x"}},
		{
			"TRACING_ENABLED=true TRACING_EXPORTER_PROTOCOL=grpc TRACING_SAMPLING_RATE=0.1 TRACING_SERVICE_NAMESPACE=n TRACING_SERVICE_INSTANCE_ID=i", true,
			tracing.Config{Protocol: "grpc", Share: new(0.1), Service: "RateLimit", Namespace: "n", Instance: "i"},
		},
	} {
		if s, err := Read(with(strings.Fields(c.env)...), c.asServer); err != nil || !reflect.DeepEqual(s.Tracing, c.want) {
			t.Errorf("%s: got %+v, %v; want %+v", c.env, s.Tracing, err, c.want)
		}
	}
}

func TestRewritesAreInTheirOrder(t *testing.T) {
	s, err := Read(with("USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=B, A",
		"DOG_STATSD_MOGRIFIER_A_PATTERN=^a$", "DOG_STATSD_MOGRIFIER_A_NAME=x",
		"DOG_STATSD_MOGRIFIER_B_PATTERN=^b(.)$", "DOG_STATSD_MOGRIFIER_B_NAME=y", "DOG_STATSD_MOGRIFIER_B_TAGS=t:$1,u:v"), false)
	if err != nil || len(s.Rewrites) != 2 || s.Rewrites[0].Name != "y" || s.Rewrites[1].Pattern.String() != "^a$" ||
		!maps.Equal(s.Rewrites[0].Tags, map[string]string{"t": "$1", "u": "v"}) {
		t.Errorf("got %+v, %v; want the rewrite y with the tags t and u, and the rewrite ^a$", s.Rewrites, err)
	}
}

func TestSecretsAreMasked(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"REDIS_AUTH", "hunter2", "***"},
		{"REDIS_AUTH", "", ""},
		{"REDIS_URL", "redis://u:p@h:1/0", "redis://***@h:1/0"},
		{"REDIS_URL", "redis://u:p@h:1,redis://v:q@g:1", "redis://***@h:1,redis://***@g:1"},
		{"REDIS_URL", "redis+sentinel://h:1/m?sentinel_password=p&db=1", "redis+sentinel://h:1/m?sentinel_password=***&db=1"},
		{"REDIS_URL", "h:1", "h:1"},
		{"REDIS_URL", "main,h:1,g:1", "main,h:1,g:1"},
		{"REDIS_URL", "redis://h:1,g:1/0", "redis://h:1,g:1/0"},
		{"REDIS_URL", "redis://[::1]:6379/0?db=1", "redis://[::1]:6379/0?db=1"},
		{"REDIS_URL", "unix:///run/redis.sock", "unix:///run/redis.sock"},
		{"REDIS_URL", "redis://:se,cr,et@h:1", "redis://***@h:1"},
		{"REDIS_URL", "redis://:se/cr?et@h:1", "redis://***@h:1"},
		{"REDIS_URL", "redis://:se@cret@h:1", "redis://***@h:1"},
		{"REDIS_URL", "u:secret@h:1", "***@h:1"},
		{"REDIS_URL", "u:secret@redis://h:1", "***"},
		{"REDIS_URL", "redis://u:secret", "redis://***"},
		{"REDIS_URL", "redis://u:secret/0", "redis://***"},
		{"REDIS_URL", "redis://u:secret:h:1", "redis://***"},
		{"REDIS_URL", "redis://:secret#@h:1", "redis://***@h:1"},
	} {
		if got := byName(c.name).Shown(c.value); got != c.want {
			t.Errorf("%s=%s: %s, want %s", c.name, c.value, got, c.want)
		}
	}
}

func TestURLsInMessagesAreMasked(t *testing.T) {
	got := MaskedText(`unexpected argument redis://u:se/cret@h:1, "rediss://:secret@g" and http://localhost:80/x`)
	if want := `unexpected argument redis://***@h:1, "rediss://***@g" and http://localhost:80/x`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestValuesBeyondTheirBoundsAreMistakes(t *testing.T) {
	const rewrite = "USE_DOG_STATSD=true USE_DOG_STATSD_MOGRIFIERS=A DOG_STATSD_MOGRIFIER_A_PATTERN=x DOG_STATSD_MOGRIFIER_A_NAME=y DOG_STATSD_MOGRIFIER_A_TAGS="
	const xds = "CONFIG_TYPE=grpc_xds_sotw "
	for text, name := range map[string]string{
		"NEAR_LIMIT_RATIO=0": "NEAR_LIMIT_RATIO", "NEAR_LIMIT_RATIO=-1": "NEAR_LIMIT_RATIO", "NEAR_LIMIT_RATIO=x": "NEAR_LIMIT_RATIO", "NEAR_LIMIT_RATIO=1.1": "NEAR_LIMIT_RATIO",
		"TRACING_SAMPLING_RATE=-0.1": "TRACING_SAMPLING_RATE", "TRACING_SAMPLING_RATE=x": "TRACING_SAMPLING_RATE",
		"GRPC_MAX_CONNECTION_AGE=-5s": "GRPC_MAX_CONNECTION_AGE", "PORT=-1": "PORT",
		"REDIS_TYPE=sentinel REDIS_URL=main": "REDIS_URL", "REDIS_TYPE=sentinel REDIS_URL=,s:1": "REDIS_URL", "REDIS_TYPE=sentinel REDIS_URL=": "",
		"REDIS_TYPE=sentinel REDIS_URL=main,": "REDIS_URL", "REDIS_TYPE=sentinel REDIS_URL=main,s:1/0": "REDIS_URL",
		"REDIS_TYPE=cluster REDIS_URL=a:1,b:1/0": "REDIS_URL", "REDIS_URL=unix://h:1": "REDIS_URL",
		rewrite + "t": "USE_DOG_STATSD_MOGRIFIERS", rewrite + ":v": "USE_DOG_STATSD_MOGRIFIERS", rewrite + "t:": "USE_DOG_STATSD_MOGRIFIERS", rewrite + "t:v,u": "USE_DOG_STATSD_MOGRIFIERS",
		rewrite + "t:v,": "",
		xds + "CONFIG_GRPC_XDS_CLIENT_TLS_CERT=c": "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", xds + "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=k": "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
		xds + "CONFIG_GRPC_XDS_CLIENT_TLS_CERT=c CONFIG_GRPC_XDS_CLIENT_TLS_KEY=k": "",
	} {
		_, err := Read(with(strings.Fields(text)...), true)
		if (err == nil) != (name == "") || err != nil && (!strings.HasPrefix(err.Error(), name+"=") || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: got %v; want one mistake, of %q", text, err, name)
		}
	}
}

func TestTheDebugPortNeedsAToken(t *testing.T) {
	for text, warned := range map[string]bool{
		"DEBUG_PORT=6071": true, "DEBUG_HOST=0.0.0.0": true, "DEBUG_HOST=10.0.0.1 DEBUG_PORT=6071": true, "": false,
		"DEBUG_PORT=6071 RLSIDECAR_ADMIN_LISTEN=:9": false, "DEBUG_PORT=6071 RLSIDECAR_ADMIN_TOKEN=x": false, "DEBUG_HOST=localhost": false, "DEBUG_HOST=::1": false, "DEBUG_HOST=127.0.0.1": false,
	} {
		s, err := Read(with(strings.Fields(text+" REDIS_URL=h:1")...), true)
		address := s.Values["admin-listen"]
		if got := strings.Contains(strings.Join(s.Warnings, "\n"), "RLSIDECAR_ADMIN_TOKEN"); err != nil || got != warned || warned && !strings.HasPrefix(address, "127.0.0.1:") {
			t.Errorf("%s: got %s, %q, %v; want a warning, and 127.0.0.1: %t", text, address, s.Warnings, err, warned)
		}
	}
}
