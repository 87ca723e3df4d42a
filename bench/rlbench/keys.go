package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rlsidecar/rlsidecar/bench/bare"
	"github.com/rlsidecar/rlsidecar/bench/load"
)

type keysCmd struct {
	sidecar

	Redis    string        `default:"redis-server" placeholder:"FILE" help:"The redis-server program."`
	Only     []string      `enum:"allowed,denied,full,redis,redis-denied" default:"allowed,denied,full,redis,redis-denied" help:"Outcome of the requests: allowed, denied, full (in memory, with more keys than buckets), redis, redis-denied."`
	Rate     float64       `default:"100000" help:"Distinct keys per second."`
	Duration time.Duration `short:"d" default:"1m" help:"Duration of one run."`
	Step     time.Duration `default:"10s" help:"Interval at which memory and the number of series are read."`
}

// flooded maps each run in memory to its limit. The runs "redis" and "redis-denied" use the limits of "allowed" and
// "denied". A limit has a bucket for each key.
var flooded = map[string]string{
	"allowed": "{unit: second, requests_per_unit: 10}",
	"denied":  "{unit: second, requests_per_unit: 0}",
	"full":    "{algorithm: token_bucket, rate: 1, period: 1h, capacity: 1}",
}

// Run sends requests that all have different keys, as an attack with invented keys does. The number of series
// must not grow with the number of keys. Once buckets of a second expire, the memory must not grow either.
func (c *keysCmd) Run(a *app) error {
	fmt.Fprintf(a.stdout, "%s; load average %s\n", machine(), loadAverage())
	for _, name := range c.Only {
		w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(w, "keys\ts\tsent\tkeys/s\tOK\tOVER_LIMIT\terrors\tbuckets\tRSS MiB\tRedis MiB\tmetrics KiB\tseries\tCPU us/key\t")
		if err := c.run(a, w, name); err != nil {
			return errors.Join(w.Flush(), fmt.Errorf("%s: %w", name, err))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

type flood struct {
	*keysCmd
	name          string
	server, redis *child // redis is nil if the buckets are in memory
	admin         string
	sent          int
	nextKey       int
}

func (c *keysCmd) run(a *app, w *tabwriter.Writer, name string) error {
	dir, err := os.MkdirTemp("", "rlbench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	f := &flood{keysCmd: c, name: name}
	limit, isRedis := strings.CutPrefix(name, "redis-")
	if name == "redis" {
		limit, isRedis = "allowed", true
	}
	var more []string
	if isRedis {
		address, port, err := freePort()
		if err != nil {
			return err
		}
		f.redis, err = startChild(a, "redis-server", address, c.Redis, "--bind", "127.0.0.1", "--port", port, "--dir", dir, "--save", "", "--appendonly", "no")
		if err != nil {
			return err
		}
		defer f.redis.stop()
		more = []string{"--redis-url", "redis://" + address}
	}
	listen, err := freeAddress()
	if err != nil {
		return err
	}
	if f.admin, err = freeAddress(); err != nil {
		return err
	}
	config := "domain: bench\ndescriptors: [{key: flood_id, rate_limit: " + flooded[limit] + "}]\n"
	if f.server, err = c.serve(a, dir, config, listen, append(more, "--grpc-listen", listen, "--admin-listen", f.admin)...); err != nil {
		return err
	}
	defer f.server.stop()
	return f.steps(a, w)
}

// steps sends the keys and prints a row for each step. The first second creates the series of the limit and
// of its usual outcomes.
func (f *flood) steps(a *app, w *tabwriter.Writer) error {
	if _, err := f.send(a, time.Second); err != nil {
		return err
	}
	before, err := f.series()
	if err != nil {
		return err
	}
	var memory []int64
	for at := time.Duration(0); at < f.Duration; at += f.Step {
		r, err := f.send(a, f.Step)
		if err != nil {
			return err
		}
		if err := f.row(a, w, at+f.Step, &r); err != nil {
			return err
		}
		memory = append(memory, r.RSS)
	}
	after, err := f.series()
	if err != nil {
		return err
	}
	for name := range before {
		delete(after, name)
	}
	const few = 20 // for errors and outcomes that did not occur in the first second
	if len(after) > few {
		return fmt.Errorf("%d new series for %d keys, such as %s", len(after), f.sent, slices.Sorted(maps.Keys(after))[0])
	}
	half := len(memory) / 2
	if half > 0 && slices.Max(memory[half:]) > slices.Max(memory[:half])/4*5 {
		return fmt.Errorf("memory grew: %d bytes after each step", memory)
	}
	return nil
}

func (f *flood) send(a *app, d time.Duration) (load.Result, error) {
	n := int(f.Rate * d.Seconds())
	r, err := load.Run(a, load.Config{
		Target: f.server.address, PID: f.server.pid(), Client: load.Raw, Rate: f.Rate, Duration: d,
		Descriptors: []string{"flood_id={}"}, FirstKey: f.nextKey, Keys: n, InTurn: true,
	})
	f.nextKey += n
	f.sent += int(r.OK+r.OverLimit) + int(r.Failed())
	return r, err
}

func (f *flood) row(a *app, w *tabwriter.Writer, at time.Duration, r *load.Result) error {
	text, err := metricsOf(f.admin)
	if err != nil {
		return err
	}
	used := "-"
	if f.redis != nil {
		rss, _, err := load.Memory(f.redis.pid())
		if err != nil {
			return err
		}
		used = fmt.Sprint(rss >> 20)
	}
	buckets, err := f.buckets(a, text)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\t%.0f\t%d\t%.0f\t%d\t%d\t%d\t%s\t%d\t%s\t%d\t%d\t%.1f\t\n", f.name, at.Seconds(), f.sent, r.PerSecond,
		r.OK, r.OverLimit, r.Failed(), buckets, r.RSS>>20, used, len(text)>>10, len(seriesOf(text)), r.CPU)
	return err
}

func (f *flood) buckets(a *app, metrics string) (string, error) {
	if f.redis == nil {
		return metric(metrics, "rlsidecar_memory_keys")
	}
	c, err := bare.Dial(a, f.redis.address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	keys, err := c.Text("INFO", "keyspace")
	_, rest, _ := strings.Cut(keys, "keys=")
	value, _, _ := strings.Cut(rest, ",")
	return value, err
}

func (f *flood) series() (map[string]bool, error) {
	text, err := metricsOf(f.admin)
	return seriesOf(text), err
}

func seriesOf(text string) map[string]bool {
	series := map[string]bool{}
	for line := range strings.Lines(text) {
		if name := line[:strings.LastIndexByte(line, ' ')+1]; !strings.HasPrefix(line, "#") {
			series[name] = true
		}
	}
	return series
}
