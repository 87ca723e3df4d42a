package main

import (
	"time"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/statsd"
)

// statsdFlags say where metrics are sent.
type statsdFlags struct {
	StatsdAddress  string        `placeholder:"HOST:PORT" env:"RLSIDECAR_STATSD_ADDRESS" help:"Send the metrics of the reference server, under its names, to this statsd server (not at all)."`
	StatsdProtocol string        `enum:"tcp,udp" default:"udp" env:"RLSIDECAR_STATSD_PROTOCOL" help:"tcp or udp (${default})."`
	StatsdFormat   string        `enum:"statsd,dogstatsd" default:"statsd" env:"RLSIDECAR_STATSD_FORMAT" help:"statsd, with tags in the names, or dogstatsd (${default})."`
	StatsdTags     []string      `placeholder:"K=V" env:"RLSIDECAR_STATSD_TAGS" help:"Tags of every metric; several with commas."`
	StatsdInterval time.Duration `default:"10s" env:"RLSIDECAR_STATSD_INTERVAL" help:"How often they are sent (${default})."`
}

// statsd is what the flags say, and of the reference server's variables what no flag says. The error
// is of a tag.
func (f statsdFlags) statsd(r reference) (statsd.Config, error) {
	tags, err := pairs("--statsd-tags", "=", f.StatsdTags)
	return statsd.Config{
		Address: f.StatsdAddress, Network: f.StatsdProtocol, Dog: f.StatsdFormat == "dogstatsd",
		Tags: tags, Every: f.StatsdInterval, Rewrites: r.Rewrites,
	}, err
}
