package main

import (
	"time"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/statsd"
)

type statsdFlags struct {
	StatsdAddress  string        `placeholder:"HOST:PORT" env:"RLSIDECAR_STATSD_ADDRESS" help:"Send the metrics of the reference server, under its names, to this StatsD server (not sent)."`
	StatsdProtocol string        `enum:"tcp,udp" default:"udp" env:"RLSIDECAR_STATSD_PROTOCOL" help:"Protocol of StatsD: tcp or udp (${default})."`
	StatsdFormat   string        `enum:"statsd,dogstatsd" default:"statsd" env:"RLSIDECAR_STATSD_FORMAT" help:"Format of StatsD: statsd, which writes tags into the names of metrics, or dogstatsd (${default})."`
	StatsdTags     []string      `placeholder:"K=V" env:"RLSIDECAR_STATSD_TAGS" help:"Tags of every StatsD metric; separate several by commas."`
	StatsdInterval time.Duration `default:"10s" env:"RLSIDECAR_STATSD_INTERVAL" help:"Time between two transmissions to StatsD (${default})."`
}

// statsd converts the flags, and adds the rewrites of the reference server's variables. It returns an error
// for a malformed tag.
func (f statsdFlags) statsd(r reference) (statsd.Config, error) {
	tags, err := pairs("--statsd-tags", "=", f.StatsdTags)
	return statsd.Config{
		Address: f.StatsdAddress, Network: f.StatsdProtocol, Dog: f.StatsdFormat == "dogstatsd",
		Tags: tags, Every: f.StatsdInterval, Rewrites: r.Rewrites,
	}, err
}
