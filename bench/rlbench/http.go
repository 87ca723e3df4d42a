package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

// httpCeilingCmd runs the cheapest HTTP server in Go: net/http with an empty handler.
type httpCeilingCmd struct {
	Listen string `required:"" placeholder:"ADDR" help:"Address to listen on: host:port."`
}

func (c *httpCeilingCmd) Run(a *app) error {
	listener, err := load.Listen(a, c.Listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "0") }),
	}
	stop := context.AfterFunc(a, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", c.Listen, err)
	}
	return nil
}

// httpCmd measures rlsidecar with the requests that NGINX sends, and NGINX with and without rlsidecar.
type httpCmd struct {
	Sidecar     string        `required:"" type:"existingfile" placeholder:"FILE" help:"The rlsidecar program."`
	NginxConf   string        `required:"" type:"existingfile" placeholder:"FILE" help:"The file examples/nginx/nginx.conf."`
	Nginx       string        `default:"nginx" help:"The NGINX program."`
	Wrk         string        `default:"wrk" help:"The wrk program."`
	Repeats     int           `default:"5" help:"Number of measurements of each, in turn."`
	Duration    time.Duration `default:"2s" help:"Duration of one measurement."`
	Connections int           `default:"16"`
	Admin       string        `placeholder:"ADDR" help:"Address of the sidecar's admin listener, for profiles during the run (a free port)."`
}

// httpLimits is a configuration with routes like those of examples/nginx/rlsidecar.yaml. Its limits are never
// reached.
const httpLimits = `
domain: bench
limits: {plenty: {algorithm: token_bucket, rate: 1, period: 1m, capacity: 100000000}}
descriptors:
  - {key: remote_address, limit: plenty}
  - {key: api_key, limit: plenty}
  - {key: tenant, limit: plenty}
auth:
  trusted_proxies: [127.0.0.1]
  routes:
    - match: {path: /login}
      descriptors: [[{key: remote_address, from: client_ip}]]
    - match: {path: /static/*}
      descriptors: [[{key: remote_address, from: client_ip}]]
    - descriptors:
        - [{key: remote_address, from: client_ip}]
        - [{key: api_key, from: "header:X-Api-Key"}]
        - [{key: tenant, from: "query:tenant"}]
`

// script is a script of wrk. It sends requests with one of 10,000 keys, either as a client does, or as NGINX
// does to rlsidecar.
const script = `
local keys = {}
for i = 1, 10000 do
  keys[i] = wrk.format("GET", "%s", {["X-Api-Key"] = "key-" .. i %s})
end
request = function() return keys[math.random(#keys)] end
`

const nginxHeaders = `, ["Host"] = "rlsidecar", ["X-Forwarded-Host"] = "shop.test", ["X-Original-Method"] = "GET", ["X-Original-URI"] = "/a/b?c=d", ["X-Real-IP"] = "192.0.2.1"`

// target is a server that wrk loads. processes are those whose CPU time counts.
type target struct {
	name, address, script string
	processes             []*child
}

func (c *httpCmd) Run(a *app) error {
	dir, err := os.MkdirTemp("", "rlbench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var at [8]string
	for i := range at {
		if at[i], err = freeAddress(); err != nil {
			return err
		}
	}
	if c.Admin != "" {
		at[3] = c.Admin
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	limits := filepath.Join(dir, "limits.yaml")
	if err := os.WriteFile(limits, []byte(httpLimits), 0o600); err != nil {
		return err
	}
	var children []*child
	defer func() {
		for _, c := range slices.Backward(children) {
			c.stop()
		}
	}()
	run := func(name, address, program string, args ...string) (*child, error) {
		p, err := startChild(a, name, address, program, args...)
		if err == nil {
			children = append(children, p)
		}
		return p, err
	}
	bare, err := run("a bare handler", at[0], self, "http-ceiling", "--listen", at[0])
	if err != nil {
		return err
	}
	sidecar, err := run("rlsidecar", at[1], c.Sidecar, "serve", "--config", limits, "--grpc-listen", at[2],
		"--http-listen", at[1], "--admin-listen", at[3], "--drain-delay", "0s")
	if err != nil {
		return err
	}
	targets := []target{
		{"a bare handler", at[0], fmt.Sprintf(script, "/v1/auth/nginx", nginxHeaders), []*child{bare}},
		{"rlsidecar", at[1], fmt.Sprintf(script, "/v1/auth/nginx", nginxHeaders), []*child{sidecar}},
	}
	for i, change := range [][2]string{{"auth_request     /_rl;", "auth_request off;"}, {"", ""}} {
		folder := filepath.Join(dir, strconv.Itoa(i))
		if err := c.nginxFolder(folder, at[4+i], at[1], at[0], change); err != nil {
			return err
		}
		name := []string{"NGINX alone", "NGINX and rlsidecar"}[i]
		nginx, err := run(name, at[4+i], c.Nginx, "-p", folder, "-e", "stderr", "-c", "nginx.conf")
		if err != nil {
			return err
		}
		processes := []*child{nginx, sidecar}[:1+i]
		targets = append(targets, target{name, at[4+i], fmt.Sprintf(script, "/a/b?c=d", `, ["Host"] = "shop.test"`), processes})
	}
	return c.measure(a, dir, targets)
}

// nginxFolder writes the example configuration of NGINX to folder, for a measurement: with these addresses, one
// process, no access log, timeouts of 10 s, and change[0] replaced by change[1]. It fails if the example no
// longer contains a text that must be replaced.
func (c *httpCmd) nginxFolder(folder, listen, sidecar, app string, change [2]string) error {
	text, err := os.ReadFile(c.NginxConf)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(folder, "tmp"), 0o700); err != nil {
		return err
	}
	user := ""
	if os.Getuid() == 0 {
		user = "user root;"
	}
	conf := string(text)
	for _, r := range [][2]string{
		{"127.0.0.1:8000", listen}, {"127.0.0.1:8080", sidecar}, {"127.0.0.1:9000", app},
		{"worker_processes auto;", "master_process off;" + user}, {"access_log access.log limited;", "access_log off;"},
		{"_timeout 50ms", "_timeout 10s"}, {"_timeout    50ms", "_timeout 10s"}, {"_timeout    100ms", "_timeout 10s"}, change,
	} {
		if !strings.Contains(conf, r[0]) {
			return fmt.Errorf("%s no longer has %q", c.NginxConf, r[0])
		}
		conf = strings.ReplaceAll(conf, r[0], r[1])
	}
	return os.WriteFile(filepath.Join(folder, "nginx.conf"), []byte(conf), 0o600)
}

// measure loads each target in turn. It prints the medians, and the ratios of the second target to the first and of
// the fourth to the third.
func (c *httpCmd) measure(a *app, dir string, targets []target) error {
	rates, costs := make([][]float64, len(targets)), make([][][]float64, len(targets))
	for i := range targets {
		costs[i] = make([][]float64, len(targets[i].processes))
	}
	client := wrk{program: c.Wrk, connections: c.Connections, duration: c.Duration, script: filepath.Join(dir, "script.lua")}
	for round := range c.Repeats {
		for i := range targets {
			if round%2 == 1 { // reverses the order in every second round, because the order may affect the result
				i = len(targets) - 1 - i
			}
			rate, cost, err := client.run(a, targets[i])
			if err != nil {
				return fmt.Errorf("%s: %w", targets[i].name, err)
			}
			rates[i] = append(rates[i], rate)
			for k := range cost {
				costs[i][k] = append(costs[i][k], cost[k])
			}
		}
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\treq/s\tratio\t(from to)\tCPU us/req\tratio\t(from to)\tof rlsidecar\t")
	for i, t := range targets {
		base := i - i%2
		fmt.Fprintf(w, "%s\t%.0f\t%s\t%.1f\t%s\t", t.name, median(rates[i]), ratios(rates[i], rates[base]), median(costs[i][0]), ratios(costs[i][0], costs[base][0]))
		if len(t.processes) > 1 {
			fmt.Fprintf(w, "%.1f", median(costs[i][1]))
		}
		fmt.Fprintln(w, "\t")
	}
	return w.Flush()
}

// ratios formats the median, the smallest and the largest of the ratios values[i]/bases[i].
func ratios(values, bases []float64) string {
	var all []float64
	for i := range values {
		all = append(all, values[i]/bases[i])
	}
	return fmt.Sprintf("%.2f\t(%.2f %.2f)", median(all), slices.Min(all), slices.Max(all))
}

var (
	wrkCount  = regexp.MustCompile(`(\d+) requests in `)
	wrkRate   = regexp.MustCompile(`Requests/sec: +([\d.]+)`)
	wrkErrors = regexp.MustCompile(`(?m)^ +(Non-2xx or 3xx responses|Socket errors): .*$`)
)

type wrk struct {
	program     string
	connections int
	duration    time.Duration // must be whole seconds
	script      string        // name of the file to which run writes the target's script
}

// run sends requests to t. It returns the requests per second and, for each process of t, the CPU time of one
// request in µs.
func (w wrk) run(a *app, t target) (rate float64, cost []float64, err error) {
	if err := os.WriteFile(w.script, []byte(t.script), 0o600); err != nil {
		return 0, nil, err
	}
	used := func() (all []time.Duration, err error) {
		for _, p := range t.processes {
			cpu, err := load.CPU(p.pid())
			if err != nil {
				return nil, err
			}
			all = append(all, cpu)
		}
		return all, nil
	}
	before, err := used()
	if err != nil {
		return 0, nil, err
	}
	out, err := exec.CommandContext(a, w.program, "-t1", "-c"+strconv.Itoa(w.connections), "-d"+w.duration.String(), "-s", w.script, "http://"+t.address).CombinedOutput()
	if err != nil {
		return 0, nil, fmt.Errorf("wrk: %w: %s", err, out)
	}
	after, err := used()
	if err != nil {
		return 0, nil, err
	}
	if wrong := wrkErrors.Find(out); wrong != nil {
		return 0, nil, fmt.Errorf("wrong answers: %s", wrong)
	}
	count, perSecond := wrkCount.FindSubmatch(out), wrkRate.FindSubmatch(out)
	if count == nil || perSecond == nil {
		return 0, nil, fmt.Errorf("the output of wrk cannot be parsed: %s", out)
	}
	n, err := strconv.ParseFloat(string(count[1]), 64)
	if err != nil {
		return 0, nil, err
	}
	if rate, err = strconv.ParseFloat(string(perSecond[1]), 64); err != nil {
		return 0, nil, err
	}
	for i := range before {
		cost = append(cost, (after[i]-before[i]).Seconds()*1e6/n)
	}
	return rate, cost, nil
}

func (w wrk) candidate(b *bench, t target) candidate {
	return candidate{t.name, func() (out sample, err error) {
		var cost []float64
		if out.PerSecond, cost, err = w.run(b.app, t); err == nil {
			out.CPU = cost[0]
		}
		return out, err
	}}
}

// httpComparison measures the HTTP listener. wrk sends requests in the form that NGINX uses, to an empty handler
// and to each variant of rlsidecar, in memory and on Redis.
func httpComparison(b *bench) ([]finding, error) {
	if err := find(b.Wrk); err != nil {
		return nil, err
	}
	redis, err := b.redis()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	w := wrk{program: b.Wrk, connections: 16, duration: max(time.Second, b.Duration.Round(time.Second)), script: filepath.Join(b.dir, "script.lua")}
	candidateOf := func(s *child, err error) (candidate, error) {
		if s, err = b.started(s, err); err != nil {
			return candidate{}, err
		}
		return w.candidate(b, target{s.name, s.address, fmt.Sprintf(script, "/v1/auth/nginx", nginxHeaders), []*child{s}}), nil
	}
	handler, err := candidateOf(startChild(b, "a bare handler", address, self, "http-ceiling", "--listen", address))
	if err != nil {
		return nil, err
	}
	all := []candidate{handler}
	variants := b.variants(b.Engine[:1])
	for _, v := range variants {
		for _, flags := range [][]string{nil, append(v.redisFlags(), on(redis).flags...)} {
			address, err := freeAddress()
			if err != nil {
				return nil, err
			}
			c, err := candidateOf(b.sidecarOf(v).serve(b, b.dir, httpLimits, address, append(flags, "--http-listen", address)...))
			if err != nil {
				return nil, err
			}
			all = append(all, c)
		}
	}
	measured, err := b.inTurn(all...)
	if err != nil {
		return nil, err
	}
	var found []finding
	for i, v := range variants {
		inMemory, onRedis := measured[1+2*i], measured[2+2*i]
		found = append(found,
			finding{
				name: "/v1/auth on Redis: CPU us a request, compared with a bare handler", engine: v.label,
				ceiling: measured[0].of(sampleCPU), ours: onRedis.of(sampleCPU), format: "%.1f",
			},
			finding{
				name: "/v1/auth on Redis: CPU us a request, compared with memory", engine: v.label,
				ceiling: inMemory.of(sampleCPU), ours: onRedis.of(sampleCPU), format: "%.1f", target: 1.6,
			})
	}
	return found, nil
}
