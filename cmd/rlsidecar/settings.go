package main

import (
	"errors"
	"fmt"
	"os"
	"reflect"
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

// Each setting is declared once, as a field with the tag setting, here or in package server. With setting:"flag" it has
// a flag and a variable. With setting:"variable" it has only a variable. The variable's name is RLSIDECAR_ and the name
// of the flag in capital letters. The table of package refenv names the settings that the reference server's variables
// set.

// serveSettings are the settings of serve.
type serveSettings struct {
	server.Config
	configSettings

	XDSNodeMetadata string `setting:"variable" placeholder:"K=V,…" help:"Node metadata that is sent to the control plane."`
	XDSHeader       string `setting:"variable" placeholder:"K:V,…" help:"Headers of the stream to the control plane."`

	MaxDescriptors    int    `setting:"variable" default:"100" help:"Maximum number of descriptors of a request, at most 1000. A request with more is denied."`
	MaxEntries        int    `setting:"variable" default:"16" help:"Maximum number of entries of a descriptor, at most 100. A request with more is denied."`
	ResponseHeaders   bool   `setting:"flag" help:"Let Envoy add rate limit headers to its responses (gRPC only; --http-headers is for HTTP)."`
	LimitHeader       string `setting:"variable" default:"RateLimit-Limit" help:"Name of the header with the limit."`
	RemainingHeader   string `setting:"variable" default:"RateLimit-Remaining" help:"Name of the header with the remaining units."`
	ResetHeader       string `setting:"variable" default:"RateLimit-Reset" help:"Name of the header with the seconds until a denied request can be repeated or, after an allowed one, until the bucket is full."`
	DynamicMetadata   bool   `setting:"flag" help:"Add dynamic metadata to gRPC answers, for Envoy's access log and filters."`
	ReferenceMetadata bool   `setting:"variable" help:"true: as --dynamic-metadata, but without denied_by, which the reference server does not send."`

	HTTPJSON    string      `name:"http-json" setting:"flag" enum:"on,off" default:"on" help:"on: the HTTP listener serves POST /json, in the format of the reference server. It needs no token. off: it does not (${default})."`
	HTTPHeaders httpHeaders `setting:"flag" default:"ietf,x,retry_after" placeholder:"SETS" help:"Rate limit headers of HTTP answers, for domains without the key http_headers: none, or any of ietf, x, openai and retry_after (${default})."`

	StatsdAddress  string        `setting:"flag" placeholder:"HOST:PORT" help:"Send the metrics of the reference server, under its names, to this StatsD server (not sent)."`
	StatsdProtocol string        `setting:"variable" enum:"tcp,udp" default:"udp" help:"Protocol of StatsD: tcp or udp."`
	StatsdFormat   string        `setting:"flag" enum:"statsd,dogstatsd" default:"statsd" help:"Format of StatsD: statsd, which writes tags into the names of metrics, or dogstatsd (${default})."`
	StatsdTags     string        `setting:"variable" placeholder:"K=V,…" help:"Tags of every StatsD metric."`
	StatsdInterval time.Duration `setting:"variable" default:"10s" help:"Time between two transmissions to StatsD."`
	Tracing        bool          `setting:"variable" help:"true: send traces of decisions to an OpenTelemetry collector. OpenTelemetry's own variables set the rest, such as OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_TRACES_SAMPLER and OTEL_SERVICE_NAME."`

	ShadowMode bool   `setting:"flag" help:"Allow every request. Statuses and metrics show which requests would have been denied."`
	QuotaMode  bool   `setting:"flag" help:"Deny a request only if all its descriptors are over their limits. A request with a descriptor that has no limit is never denied."`
	LogLevel   string `setting:"flag" enum:"debug,info,warn,error" default:"info" help:"Log level: debug, info, warn or error."`
	LogFormat  string `setting:"flag" enum:"text,json" default:"text" help:"Log format: text or json."`
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

// mostLimits is the maximum of the setting max-limits, which exists to bound memory.
const mostLimits = 10_000_000

// kong calls Validate.
func (s configSettings) Validate() error {
	if s.MaxLimits < 1 || s.MaxLimits > mostLimits {
		return fmt.Errorf("RLSIDECAR_MAX_LIMITS must be between 1 and %d, but is %d", mostLimits, s.MaxLimits)
	}
	if !(s.LocalShare >= 0 && s.LocalShare <= 1) { // also if it is NaN
		return fmt.Errorf("--local-share must be more than 0 and at most 1, but is %g", s.LocalShare)
	}
	return nil
}

func (s configSettings) options(r reference) config.Options {
	failure := limiter.OnFailures[s.OnBackendFailure] // kong has already checked the value
	return config.Options{ConsumeEach: s.Consume == "each", OnFailure: failure, LocalShare: s.LocalShare, KeepBlanks: s.KeepBlanks, ConsumeTogether: r.ConsumeTogether, MaxLimits: s.MaxLimits, LogListener: s.LogListen != ""}
}

// xds returns the control plane that provides the configuration. It returns the zero XDS if files do.
func (s *serveSettings) xds() (x server.XDS, err error) {
	if s.XDS.Server == "" {
		return x, nil
	}
	x = s.XDS
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

// tokenFile reads the name of a file with a token or a key. It rejects an empty name, because that may come from an
// unset variable in a script, and without a file no token would be required.
func tokenFile(c *kong.DecodeContext, target reflect.Value) error {
	var name string
	if err := c.Scan.PopValueInto("file", &name); err != nil {
		return err
	}
	if name == "" {
		return errors.New("the name of the token file is empty; give a file name")
	}
	target.SetString(name)
	return nil
}

const ownPrefix = "RLSIDECAR_"

func variableName(setting string) string {
	return ownPrefix + strings.ToUpper(strings.ReplaceAll(setting, "-", "_"))
}

// onlyVariables has the names of the settings of all commands that have no flag.
func onlyVariables(model *kong.Node) map[string]bool {
	hidden := map[string]bool{}
	for _, command := range model.Leaves(false) {
		for _, flag := range command.Flags {
			hidden[flag.Name] = hidden[flag.Name] || flag.Hidden
		}
	}
	return hidden
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

func (s configSettings) load(a *app, paths []string) (*limiter.Snapshot, error) {
	if err := readable(paths); err != nil {
		return nil, err
	}
	snapshot, problems := config.Load(paths, s.options(a.reference))
	for _, p := range problems {
		fmt.Fprintln(a.stderr, p)
	}
	if snapshot == nil {
		return nil, exitError{code: exitNo}
	}
	return snapshot, nil
}

// readable returns an error if a path cannot be found. The exit code is exitFailed and not exitNo, because that is
// not a mistake in the configuration.
func readable(paths []string) error {
	var missing []error
	for _, path := range paths {
		if _, err := os.Stat(config.Root(path)); err != nil {
			missing = append(missing, err)
		}
	}
	if len(missing) > 0 {
		return exitError{exitFailed, errors.Join(missing...)}
	}
	return nil
}
