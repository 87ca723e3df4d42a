// Package refenv converts the environment of the reference server, envoyproxy/ratelimit, to values for flags of
// `rlsidecar serve`, by the flags' names. Read is a function of its arguments: the package reads no files and uses no
// network.
//
// A setting that cannot be honored is an error if limits would not hold as intended. It is a warning if something
// else is missing. It is silent if only the implementation differs.
package refenv

import (
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/statsd"
)

// Settings is the result of reading an environment.
type Settings struct {
	// Flags are flags of serve, by name.
	Flags map[string]Flag
	// XDS is the control plane that provides the configuration; nil means that files do.
	XDS *XDS
	// Rewrites change the metrics sent to DogStatsD.
	Rewrites []statsd.Rewrite
	// ConsumeTogether means that a denied request consumes nothing from any limit, even if the configuration has
	// `consume: each`.
	ConsumeTogether bool
	// Warnings are messages for the operator. The caller must log them.
	Warnings []string
}

// Flag is the value of a flag.
type Flag struct {
	Value string
	From  string // the name of the variable; of several variables, the most specific one
}

// Read reads env. With asServer, the program replaces the reference server and uses its defaults; otherwise unset
// variables have no effect. Empty variables count as not set. The error lists each variable that cannot be used.
func Read(env map[string]string, asServer bool) (Settings, error) {
	r := &reader{env: env, asServer: asServer, Settings: Settings{Flags: map[string]Flag{}}}
	r.files()
	r.listeners()
	r.admin()
	r.tls()
	r.redis()
	r.ConsumeTogether = r.bool("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT")
	r.answers()
	r.metrics()
	r.tracing()
	r.logging()
	r.readXDS()
	return r.Settings, errors.Join(r.mistakes...)
}

type reader struct {
	env      map[string]string
	asServer bool
	Settings
	mistakes []error
}

func (r *reader) given(name string) string {
	byName(name) // panics unless the table has the variable
	return r.env[name]
}

func (r *reader) value(name string) string {
	if v := r.given(name); v != "" {
		return v
	}
	return byName(name).Default
}

// counts reports whether a variable has an effect: it is set, or its default applies.
func (r *reader) counts(name string) bool { return r.asServer || r.given(name) != "" }

func (r *reader) set(flag, value, from string) { r.Flags[flag] = Flag{value, from} }

// copy sets flag to the value of the variable, or to the variable's default if that has an effect (counts). It never
// sets an empty value.
func (r *reader) copy(flag, name string) {
	if v := r.value(name); v != "" && r.counts(name) {
		r.set(flag, v, name)
	}
}

func (r *reader) mistake(name, format string, args ...any) {
	shown := byName(name).Shown(r.env[name])
	r.mistakes = append(r.mistakes, fmt.Errorf("%s=%s: %s", name, shown, fmt.Sprintf(format, args...)))
}

func (r *reader) warn(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...))
}

func (r *reader) bool(name string) bool {
	v, err := strconv.ParseBool(r.value(name))
	if err != nil {
		r.mistake(name, "write true or false")
	}
	return v
}

func (r *reader) duration(name string) time.Duration {
	d, err := time.ParseDuration(r.value(name))
	if err != nil || d < 0 {
		r.mistake(name, "write a duration, such as 30s or 24h")
	}
	return d
}

func (r *reader) integer(name string, most int) int {
	n, err := strconv.Atoi(r.value(name))
	if err != nil || n < 0 || n > most {
		r.mistake(name, "write a number from 0 to %d", most)
	}
	return n
}

func (r *reader) choice(name string, words ...string) string {
	v := strings.ToLower(r.value(name))
	if slices.Contains(words, v) {
		return v
	}
	r.mistake(name, "write %s", strings.Join(words, ", "))
	return ""
}

// The reference server can watch a replaced symbolic link or a changed folder. rlsidecar always watches both.
func (r *reader) files() {
	kind := r.choice("CONFIG_TYPE", "file", "grpc_xds_sotw")
	r.bool("RUNTIME_WATCH_ROOT")
	r.bool("RUNTIME_IGNOREDOTFILES")
	r.bool("MERGE_DOMAIN_CONFIG")
	if kind != "file" || !r.counts("RUNTIME_ROOT") {
		return
	}
	folder := path.Join(r.value("RUNTIME_ROOT"), r.value("RUNTIME_SUBDIRECTORY"), r.value("RUNTIME_APPDIRECTORY"))
	// The flag is a list separated by commas, so a comma in the path needs a backslash.
	r.set("config", strings.ReplaceAll(path.Join(folder, "**"), ",", `\,`), "RUNTIME_ROOT")
}

func (r *reader) listeners() {
	host := ""
	if r.asServer { // some shells set HOST, so it has an effect only if the program replaces the reference server
		host = r.given("HOST")
	}
	r.listen("http-listen", host, "PORT")
	if v := r.given("GRPC_UDS"); v != "" {
		r.set("grpc-listen", "unix://"+v, "GRPC_UDS")
	} else {
		r.listen("grpc-listen", r.given("GRPC_HOST"), "GRPC_PORT")
	}
	for flag, name := range map[string]string{
		"grpc-max-connection-age": "GRPC_MAX_CONNECTION_AGE", "grpc-max-connection-age-grace": "GRPC_MAX_CONNECTION_AGE_GRACE",
	} {
		if r.counts(name) {
			r.set(flag, r.duration(name).String(), name)
		}
	}
}

// listen sets the flag of a listener from a host and a port. If neither has an effect, it sets nothing. Without a
// host the listener is open on all interfaces if the program replaces the reference server, and otherwise only
// on loopback.
func (r *reader) listen(flag, host, portName string) {
	if host == "" && !r.counts(portName) {
		return
	}
	if host == "" && !r.asServer {
		host = loopback
	}
	port := r.integer(portName, 65535)
	r.set(flag, net.JoinHostPort(host, strconv.Itoa(port)), portName)
}

const loopback = "127.0.0.1"

// The reference server serves memory profiles on the debug port without authentication. Here, other machines need a
// token. If no token is set, the port listens only on loopback.
func (r *reader) admin() {
	if !r.counts("DEBUG_PORT") && r.given("DEBUG_HOST") == "" {
		return
	}
	host := r.given("DEBUG_HOST")
	switch {
	case r.env["RLSIDECAR_ADMIN_TOKEN"] != "" || r.env["RLSIDECAR_ADMIN_TOKEN_FILE"] != "":
	case host != loopback && host != "localhost" && host != "::1":
		if (host != "" || r.given("DEBUG_PORT") != "") && r.env["RLSIDECAR_ADMIN_LISTEN"] == "" {
			r.warn("the debug port is open only to this machine; to open it to others, set RLSIDECAR_ADMIN_TOKEN or RLSIDECAR_ADMIN_TOKEN_FILE, whose token they must send, or set PROMETHEUS_ADDR for metrics without a token")
		}
		host = loopback
	}
	r.listen("admin-listen", host, "DEBUG_PORT")
}

func (r *reader) tls() {
	if !r.bool("GRPC_SERVER_USE_TLS") {
		return
	}
	for _, name := range []string{"GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY"} {
		if r.given(name) == "" {
			r.mistake("GRPC_SERVER_USE_TLS", "%s is not set; name a PEM file", name)
		}
	}
	r.copy("tls-cert", "GRPC_SERVER_TLS_CERT")
	r.copy("tls-key", "GRPC_SERVER_TLS_KEY")
	r.copy("tls-client-ca", "GRPC_CLIENT_TLS_CACERT")
	if r.given("GRPC_CLIENT_TLS_CACERT") != "" { // without a CA the reference server requires no certificate
		r.copy("tls-client-name", "GRPC_CLIENT_TLS_SAN")
	}
}

func (r *reader) answers() {
	for flag, name := range map[string]string{
		"response-headers": "LIMIT_RESPONSE_HEADERS_ENABLED", "dynamic-metadata": "RESPONSE_DYNAMIC_METADATA",
		"shadow-mode": "SHADOW_MODE", "quota-mode": "QUOTA_MODE",
	} {
		if r.counts(name) {
			r.set(flag, strconv.FormatBool(r.bool(name)), name)
		}
	}
	r.copy("limit-header", "LIMIT_LIMIT_HEADER")
	r.copy("remaining-header", "LIMIT_REMAINING_HEADER")
	r.copy("reset-header", "LIMIT_RESET_HEADER")
}

func (r *reader) metrics() {
	ratio, err := strconv.ParseFloat(r.value("NEAR_LIMIT_RATIO"), 32)
	if err != nil || ratio <= 0 || ratio > 1 {
		r.mistake("NEAR_LIMIT_RATIO", "write a share above 0, up to 1, such as 0.8")
	}
	r.copy("near-limit-ratio", "NEAR_LIMIT_RATIO")
	if r.bool("DISABLE_STATS") {
		return
	}
	r.statsd()
	if r.bool("USE_PROMETHEUS") {
		r.set("metrics-listen", r.value("PROMETHEUS_ADDR"), "PROMETHEUS_ADDR")
		r.set("metrics-path", r.value("PROMETHEUS_PATH"), "PROMETHEUS_PATH")
	}
}

// OpenTelemetry's own variables, which both servers read, set the destination of traces.
func (r *reader) tracing() {
	rate, err := strconv.ParseFloat(r.value("TRACING_SAMPLING_RATE"), 64)
	if err != nil || rate < 0 || rate > 1 {
		r.mistake("TRACING_SAMPLING_RATE", "write a share from 0 to 1, such as 0.1")
	}
	protocol := r.choice("TRACING_EXPORTER_PROTOCOL", "http", "grpc")
	if !r.bool("TRACING_ENABLED") {
		return
	}
	r.set("tracing", "true", "TRACING_ENABLED")
	r.set("tracing-protocol", protocol, "TRACING_EXPORTER_PROTOCOL")
	r.copy("tracing-sampling-rate", "TRACING_SAMPLING_RATE")
	if r.given("TRACING_SERVICE_NAME") != "" || r.env["OTEL_SERVICE_NAME"] == "" {
		r.copy("tracing-service-name", "TRACING_SERVICE_NAME")
	}
	r.copy("tracing-service-namespace", "TRACING_SERVICE_NAMESPACE")
	r.copy("tracing-service-instance-id", "TRACING_SERVICE_INSTANCE_ID")
}

// levels maps the levels of logrus to those of --log-level, which has none above error.
var levels = map[string]string{
	"panic": "error", "fatal": "error", "error": "error", "warn": "warn", "warning": "warn", "info": "info", "debug": "debug", "trace": "debug",
}

func (r *reader) logging() {
	if r.counts("LOG_LEVEL") {
		r.set("log-level", levels[r.choice("LOG_LEVEL", "panic", "fatal", "error", "warn", "warning", "info", "debug", "trace")], "LOG_LEVEL")
	}
	if r.counts("LOG_FORMAT") {
		r.set("log-format", r.choice("LOG_FORMAT", "text", "json"), "LOG_FORMAT")
	}
}
