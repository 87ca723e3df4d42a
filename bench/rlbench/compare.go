package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

type compareCmd struct {
	sidecar

	Target     string `required:"" xor:"server" placeholder:"ADDR" help:"A running server to measure in place of rlsidecar: host:port or unix:///path. Scenarios of denials are left out."`
	PID        int    `name:"pid" help:"Process ID of the server at --target. Required to measure its CPU time."`
	Domain     string `default:"bench" help:"Domain of the requests."`
	Descriptor string `default:"user_id={}" placeholder:"KEY=VALUE,…" help:"Descriptor of the requests; {} becomes the number of the key."`
	Ceiling    string `enum:"h2,grpc-go" default:"h2" help:"The server to compare with: an empty server on HTTP/2 frames, or on grpc-go."`

	Repeats     int           `default:"5" help:"Number of measurements of each of the two, in turn."`
	Duration    time.Duration `default:"1s" help:"Duration of one measurement."`
	Connections int           `default:"4"`
	Outstanding int           `default:"16" help:"Number of requests in flight on one connection."`
	Client      []string      `enum:"grpc,raw" default:"grpc,raw"`
	Only        []string      `placeholder:"NAME" help:"Scenarios to measure: ${scenarios} (all)."`
	Most        float64       `placeholder:"RATIO" help:"Exit with 1 if the ratio of a closed loop exceeds this number."`
	JSON        bool          `name:"json" help:"Print JSON: a line for each row of the table, with all its measurements."`
}

// Validate returns an error if only one of --target and --pid is given. kong calls it. kong's tag "and" cannot
// express the rule, because it would make --target required.
func (c *compareCmd) Validate() error {
	if (c.Target == "") != (c.PID == 0) {
		return errors.New("--target needs --pid, and the other way round")
	}
	return nil
}

type scenario struct {
	name   string
	key    string
	keys   int
	rate   float64 // requests a second in an open loop; 0 means a closed loop
	denied bool    // the limit denies all requests except the first
}

var scenarios = []scenario{
	{name: "1key", key: "user_id", keys: 1},
	{name: "10k", key: "user_id", keys: 10_000},
	{name: "1M", key: "user_id", keys: 1_000_000},
	{name: "denied", key: "hot_id", keys: 1, denied: true},
	{name: "2000/s", key: "user_id", keys: 10_000, rate: 2000},
}

func scenarioNames() (names []string) {
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

type row struct {
	Scenario string        `json:"scenario"`
	Client   string        `json:"client"`
	Ceiling  []load.Result `json:"ceiling"`
	Sidecar  []load.Result `json:"rlsidecar"`
}

func (c *compareCmd) Run(a *app) error {
	for _, name := range c.Only {
		if !slices.Contains(scenarioNames(), name) {
			return fmt.Errorf("no scenario is called %q; there are %v", name, scenarioNames())
		}
	}
	ceiling, err := startCeiling(a, c.Ceiling)
	if err != nil {
		return err
	}
	defer ceiling.stop()
	var rows []row
	for _, s := range scenarios {
		if len(c.Only) > 0 && !slices.Contains(c.Only, s.name) || c.Target != "" && s.denied {
			continue
		}
		measured, err := c.measure(a, s, ceiling)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		rows = append(rows, measured...)
	}
	if err := c.print(a, rows); err != nil {
		return err
	}
	for _, r := range rows {
		if ratio := median(r.ratios()); c.Most > 0 && r.Ceiling[0].Rate == 0 && ratio > c.Most {
			return fmt.Errorf("%s, %s: rlsidecar costs %.2f times the ceiling, at most %.2f is wanted", r.Scenario, r.Client, ratio, c.Most)
		}
	}
	return nil
}

// measure measures one scenario. Unless --target is given, it starts a new rlsidecar, so that its memory contains only
// the keys of that scenario.
func (c *compareCmd) measure(a *app, s scenario, ceiling *child) ([]row, error) {
	dir, err := os.MkdirTemp("", "rlbench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	all := load.Config{
		Client: load.Raw, Connections: c.Connections, Outstanding: c.Outstanding,
		Descriptors: []string{s.key + "={}"}, Keys: s.keys,
	}
	sidecar := &child{name: c.Target, address: c.Target, foreign: c.PID}
	if c.Target != "" {
		all.Domain, all.Descriptors = c.Domain, []string{c.Descriptor}
	} else if sidecar, err = c.start(a, dir, all); err != nil {
		return nil, err
	}
	defer sidecar.stop()
	seen := all // sends every key once, so that no key is new when it is measured
	seen.InTurn, seen.Requests = true, int64(s.keys)
	if _, err := measureRequests(a, sidecar, seen, s.denied); err != nil {
		return nil, err
	}
	all.Duration, all.Warmup, all.Rate = c.Duration, c.Duration/5, s.rate
	var rows []row
	for _, client := range c.Client {
		all.Client = client
		r := row{Scenario: s.name, Client: client}
		for i := range c.Repeats {
			pair := []*child{ceiling, sidecar}
			if i%2 == 1 { // reverses the order in every second round, because the order may affect the result
				slices.Reverse(pair)
			}
			for _, server := range pair {
				result, err := measureRequests(a, server, all, s.denied && server == sidecar)
				if err != nil {
					return nil, err
				}
				if server == ceiling {
					r.Ceiling = append(r.Ceiling, result)
				} else {
					r.Sidecar = append(r.Sidecar, result)
				}
			}
		}
		fmt.Fprintf(a.stderr, "%s, %s: %.2f\n", s.name, client, median(r.ratios()))
		rows = append(rows, r)
	}
	return rows, nil
}

func measureRequests(a *app, server *child, c load.Config, denied bool) (load.Result, error) {
	c.Target, c.PID = server.address, server.pid()
	r, err := load.Run(a, c)
	wrong := r.OverLimit
	switch {
	case server.foreign != 0: // the limits of a server that rlbench has not started are unknown
		wrong = 0
	case denied:
		wrong = max(0, r.OK-int64(c.Keys))
	}
	switch {
	case err != nil:
		return r, fmt.Errorf("%s: %w", server.name, err)
	case r.Failed() > 0:
		return r, fmt.Errorf("%s: errors: %v", server.name, &r)
	case r.Answers() == 0:
		return r, fmt.Errorf("%s: no answers", server.name)
	case wrong > 0:
		return r, fmt.Errorf("%s: wrong answers: %v", server.name, &r)
	}
	return r, nil
}

func (c *compareCmd) print(a *app, rows []row) error {
	if c.JSON {
		e := json.NewEncoder(a.stdout)
		for _, r := range rows {
			if err := e.Encode(r); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "scenario\tclient\tCPU us/req: ceiling\tserver\tratio\t(from to)\treq/s: ceiling\tserver\tp50 ms\tp99 ms\tRSS MiB\t")
	for _, r := range rows {
		ratios := r.ratios()
		fmt.Fprintf(w, "%s\t%s\t%.1f\t%.1f\t%.2f\t(%.2f %.2f)\t%.0f\t%.0f\t%.2f, %.2f\t%.1f, %.1f\t%d\t\n",
			r.Scenario, r.Client, medianOf(r.Ceiling, cpu), medianOf(r.Sidecar, cpu),
			median(ratios), slices.Min(ratios), slices.Max(ratios),
			medianOf(r.Ceiling, perSecond), medianOf(r.Sidecar, perSecond),
			medianOf(r.Ceiling, p50), medianOf(r.Sidecar, p50), medianOf(r.Ceiling, p99), medianOf(r.Sidecar, p99),
			r.Sidecar[len(r.Sidecar)-1].RSS>>20)
	}
	return w.Flush()
}

func (r *row) ratios() (ratios []float64) {
	for i := range r.Sidecar {
		ratios = append(ratios, r.Sidecar[i].CPU/r.Ceiling[i].CPU)
	}
	return ratios
}

func cpu(r load.Result) float64       { return r.CPU }
func perSecond(r load.Result) float64 { return r.PerSecond }
func p50(r load.Result) float64       { return r.P50 }
func p99(r load.Result) float64       { return r.P99 }

func medianOf(results []load.Result, value func(load.Result) float64) float64 {
	var values []float64
	for _, r := range results {
		values = append(values, value(r))
	}
	return median(values)
}

// median returns the median of values. values must not be empty.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[middle-1] + sorted[middle]) / 2
	}
	return sorted[middle]
}
