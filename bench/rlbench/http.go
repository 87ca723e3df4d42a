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
	"strconv"
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

// target is a server that wrk loads. The CPU time of process counts.
type target struct {
	name, address, script string
	process               *child
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

// run sends requests to t. The result has the requests per second, and the CPU time of one request in µs.
func (w wrk) run(b *bench, t target) (out sample) {
	check(os.WriteFile(w.script, []byte(t.script), 0o600))
	before := must(load.CPU(t.process.pid()))
	text := output(exec.CommandContext(b, w.program, "-t1", "-c"+strconv.Itoa(w.connections), "-d"+w.duration.String(), "-s", w.script, "http://"+t.address))
	used := must(load.CPU(t.process.pid())) - before
	if wrong := wrkErrors.FindString(text); wrong != "" {
		check(fmt.Errorf("wrong answers: %s", wrong))
	}
	count, perSecond := wrkCount.FindStringSubmatch(text), wrkRate.FindStringSubmatch(text)
	if count == nil || perSecond == nil {
		check(fmt.Errorf("the output of wrk cannot be parsed: %s", text))
	}
	out.PerSecond = must(strconv.ParseFloat(perSecond[1], 64))
	out.CPU = used.Seconds() * 1e6 / must(strconv.ParseFloat(count[1], 64))
	return out
}

func (w wrk) candidate(b *bench, t target) candidate {
	return candidate{t.name, func() sample { return w.run(b, t) }}
}

// httpComparison measures the HTTP listener. wrk sends requests in the form that NGINX uses, to an empty handler
// and to each variant of rlsidecar, in memory and on Redis.
func httpComparison(b *bench) []finding {
	check(find(b.Wrk))
	redis := b.redis()
	self := must(os.Executable())
	address := must(freeAddress())
	w := wrk{program: b.Wrk, connections: 16, duration: max(time.Second, b.Duration.Round(time.Second)), script: filepath.Join(b.dir, "script.lua")}
	candidateOf := func(s *child, err error) candidate {
		s = b.started(s, err)
		return w.candidate(b, target{s.name, s.address, fmt.Sprintf(script, "/v1/auth/nginx", nginxHeaders), s})
	}
	handler := candidateOf(startChild(b, "a bare handler", address, self, "http-ceiling", "--listen", address))
	all := []candidate{handler}
	variants := b.variants()
	for _, v := range variants {
		for _, flags := range [][]string{nil, append(v.redisFlags(), on(redis).flags...)} {
			address := must(freeAddress())
			c := candidateOf(b.sidecarOf(v).serve(b, b.dir, httpLimits, address, append(flags, "--http-listen", address)...))
			all = append(all, c)
		}
	}
	measured := b.inTurn(all...)
	var found []finding
	for i, v := range variants {
		inMemory, onRedis := measured[1+2*i], measured[2+2*i]
		found = append(found,
			finding{
				name: "/v1/auth on Redis: CPU us a request, compared with a bare handler", variant: v.label,
				ceiling: measured[0].of(sampleCPU), ours: onRedis.of(sampleCPU), format: "%.1f",
			},
			finding{
				name: "/v1/auth on Redis: CPU us a request, compared with memory", variant: v.label,
				ceiling: inMemory.of(sampleCPU), ours: onRedis.of(sampleCPU), format: "%.1f", target: 1.6,
			})
	}
	return found
}
