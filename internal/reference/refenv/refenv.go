// Package refenv converts the environment of the reference server, envoyproxy/ratelimit, to values for settings of
// `rlsidecar serve`, by the settings' names. Read is a function of its arguments: the package reads no files and uses
// no network.
//
// A setting that cannot be honored is an error if limits would not hold as intended. It is a warning if something
// else is missing. It is silent if only the implementation differs.
package refenv

import (
	"errors"
	"fmt"
	"math"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/statsd"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/tracing"
)

// Settings is the result of reading an environment.
type Settings struct {
	// Values are values of settings of serve, by the names of their flags.
	Values map[string]string
	// Tracing has the details of tracing.
	Tracing tracing.Config
	// Rewrites change the metrics sent to DogStatsD.
	Rewrites []statsd.Rewrite
	// ConsumeTogether means that a denied request consumes nothing from any limit, even if the configuration has
	// `consume: each`.
	ConsumeTogether bool
	// Warnings are messages for the operator. The caller must log them.
	Warnings []string
}

// Read reads env. With asServer, the program replaces the reference server and uses its defaults; otherwise unset
// variables have no effect. Empty variables count as not set. The error lists each variable that cannot be used.
func Read(env map[string]string, asServer bool) (Settings, error) {
	r := &reader{env: env, asServer: asServer, Settings: Settings{Values: map[string]string{}}}
	r.files()
	r.listeners()
	r.admin()
	r.tls()
	redisOverTLS := r.redis()
	r.ConsumeTogether = r.bool("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT")
	r.metrics()
	r.tracing()
	r.copyAll(redisOverTLS)
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

// copyAll gives each variable that sets a setting to that setting, if the variable has an effect. It never sets an
// empty value.
func (r *reader) copyAll(redisOverTLS bool) {
	fromPlane := r.choice("CONFIG_TYPE", "file", "grpc_xds_sotw") == "grpc_xds_sotw"
	active := [...]bool{
		xds:       fromPlane,
		xdsTLS:    fromPlane && r.bool("CONFIG_GRPC_XDS_SERVER_USE_TLS"),
		serverTLS: r.bool("GRPC_SERVER_USE_TLS"),
		redisTLS:  redisOverTLS,
	}
	for _, v := range variables {
		if v.Sets == "" || v.when == always && !r.counts(v.Name) || v.when != always && !active[v.when] || r.value(v.Name) == "" {
			continue
		}
		r.Values[v.Sets] = r.checked(v)
	}
}

// checked returns the value of v in the form of a setting.
func (r *reader) checked(v Variable) string {
	switch v.kind {
	case truth:
		return strconv.FormatBool(r.bool(v.Name))
	case span:
		return r.duration(v.Name).String()
	case bytes:
		return strconv.Itoa(r.integer(v.Name, math.MaxInt32))
	case level:
		return levels[r.choice(v.Name, "panic", "fatal", "error", "warn", "warning", "info", "debug", "trace")]
	case format:
		return r.choice(v.Name, "text", "json")
	case share:
		if ratio, err := strconv.ParseFloat(r.value(v.Name), 32); err != nil || ratio <= 0 || ratio > 1 {
			r.mistake(v.Name, "write a share above 0, up to 1, such as 0.8")
		}
	case equalPairs:
		r.pairs(v.Name, "=:") // the reference server expects "=", but its documentation shows ":"
	case colonPairs:
		r.pairs(v.Name, ":")
	}
	return r.value(v.Name)
}

// levels maps the levels of logrus to those of --log-level, which has none above error.
var levels = map[string]string{
	"panic": "error", "fatal": "error", "error": "error", "warn": "warn", "warning": "warn", "info": "info", "debug": "debug", "trace": "debug",
}

func (r *reader) mistake(name, format string, args ...any) {
	err := fmt.Errorf("%s=%s: %s", name, byName(name).Shown(r.env[name]), fmt.Sprintf(format, args...))
	if !slices.ContainsFunc(r.mistakes, func(e error) bool { return e.Error() == err.Error() }) { // some variables are read twice
		r.mistakes = append(r.mistakes, err)
	}
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
	// The setting is a list separated by commas, so a comma in the path needs a backslash.
	r.Values["config"] = strings.ReplaceAll(path.Join(folder, "**"), ",", `\,`)
}

func (r *reader) listeners() {
	host := ""
	if r.asServer { // some shells set HOST, so it has an effect only if the program replaces the reference server
		host = r.given("HOST")
	}
	r.listen("http-listen", host, "PORT")
	if v := r.given("GRPC_UDS"); v != "" {
		r.Values["grpc-listen"] = "unix://" + v
	} else {
		r.listen("grpc-listen", r.given("GRPC_HOST"), "GRPC_PORT")
	}
}

// listen sets the address of a listener from a host and a port. If neither has an effect, it sets nothing. Without a
// host the listener is open on all interfaces if the program replaces the reference server, and otherwise only
// on loopback.
func (r *reader) listen(setting, host, portName string) {
	if host == "" && !r.counts(portName) {
		return
	}
	if host == "" && !r.asServer {
		host = loopback
	}
	port := r.integer(portName, 65535)
	r.Values[setting] = net.JoinHostPort(host, strconv.Itoa(port))
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
	if (r.given("CONFIG_GRPC_XDS_CLIENT_TLS_CERT") == "") != (r.given("CONFIG_GRPC_XDS_CLIENT_TLS_KEY") == "") {
		r.mistake("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "a client certificate needs both a certificate and CONFIG_GRPC_XDS_CLIENT_TLS_KEY")
	}
	if !r.bool("GRPC_SERVER_USE_TLS") {
		return
	}
	for _, name := range []string{"GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY"} {
		if r.given(name) == "" {
			r.mistake("GRPC_SERVER_USE_TLS", "%s is not set; name a PEM file", name)
		}
	}
	if r.given("GRPC_CLIENT_TLS_CACERT") != "" && r.given("GRPC_CLIENT_TLS_SAN") != "" { // without a CA the reference server requires no certificate
		r.Values["tls-client-name"] = r.given("GRPC_CLIENT_TLS_SAN")
	}
}

func (r *reader) metrics() {
	if r.bool("DISABLE_STATS") {
		return
	}
	r.statsd()
	if r.bool("USE_PROMETHEUS") {
		r.Values["metrics-listen"] = r.value("PROMETHEUS_ADDR")
		r.Values["metrics-path"] = r.value("PROMETHEUS_PATH")
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
	r.Values["tracing"] = "true"
	r.Tracing = tracing.Config{
		Protocol: protocol, Share: &rate, Service: r.given("TRACING_SERVICE_NAME"),
		Namespace: r.given("TRACING_SERVICE_NAMESPACE"), Instance: r.given("TRACING_SERVICE_INSTANCE_ID"),
	}
	if r.Tracing.Service == "" && r.asServer && r.env["OTEL_SERVICE_NAME"] == "" {
		r.Tracing.Service = r.value("TRACING_SERVICE_NAME")
	}
}

// pairs checks a list of pairs.
func (r *reader) pairs(name, separators string) {
	if _, ok := Pairs(r.value(name), separators); !ok {
		r.mistake(name, "write name%svalue, with commas between several", separators[:1])
	}
}

// Pairs parses a list of pairs, with commas between them. One of separators stands between the name and the value of a
// pair. ok is false if a pair has no name or no separator.
func Pairs(list, separators string) (pairs map[string]string, ok bool) {
	pairs = map[string]string{}
	for pair := range strings.SplitSeq(list, ",") {
		pair = strings.TrimSpace(pair)
		if pair == "" {
			continue
		}
		i := strings.IndexAny(pair, separators)
		if i < 1 {
			return nil, false
		}
		pairs[strings.TrimSpace(pair[:i])] = strings.TrimSpace(pair[i+1:])
	}
	return pairs, true
}
