package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
	"time"
)

// envoyConfig is the template of Envoy's configuration. It has a listener for each limiter. The listeners
// forward requests to an application, because Envoy does not call the limiter for requests that it answers
// itself.
//
//go:embed envoy.yaml.tmpl
var envoyConfig string

type limitedBy struct {
	Name, Listen, Limiter string
}

// Port returns the port of host:port. The template envoyConfig calls it.
func (limitedBy) Port(address string) string { return portOf(address) }

// envoyComparison measures limiters behind Envoy. wrk sends requests to Envoy, which calls one limiter for each
// request.
func envoyComparison(b *bench) []finding {
	check(find(b.Envoy))
	check(find(b.Wrk))
	empty := b.started(startCeiling(b))
	servers := map[string]*child{"empty": empty}
	behind := []limitedBy{{Name: "empty", Limiter: empty.address}}
	for i, v := range b.variants() {
		s := b.started(b.sidecarOf(v).start(b, b.dir, b.loadConfig("user_id", 1)))
		name := fmt.Sprint("limiter", i)
		servers[name] = s
		behind = append(behind, limitedBy{Name: name, Limiter: s.address})
	}
	b.startEnvoy(behind)
	w := wrk{program: b.Wrk, connections: 64, duration: max(time.Second, b.Duration.Round(time.Second)), script: filepath.Join(b.dir, "script.lua")}
	through := func(l limitedBy) candidate {
		s := servers[l.Name]
		return w.candidate(b, target{name: s.name, address: l.Listen, script: fmt.Sprintf(userScript, 10_000), process: s})
	}
	next := 0
	return b.against(through(behind[0]), func(variant) candidate {
		next++
		return through(behind[next])
	}, func(variant string, ceiling, ours rounds) []finding {
		return []finding{
			{
				name: "behind Envoy, in memory: CPU us a request", variant: variant,
				ceiling: ceiling.of(sampleCPU), ours: ours.of(sampleCPU), format: "%.1f", target: 1.3,
			},
			{
				name: "behind Envoy, in memory: requests/s through Envoy", variant: variant,
				ceiling: ceiling.of(samplePerSecond), ours: ours.of(samplePerSecond), format: "%.0f", atLeast: true, target: 0.97,
			},
		}
	})
}

// userScript is a script of wrk. Each request is for a random user, and the script's parameter is the number
// of users.
const userScript = `
local requests = {}
for i = 1, %d do
  requests[i] = wrk.format("GET", "/", {["Host"] = "shop.test", ["X-User-ID"] = string.format("%%08d", i)})
end
request = function() return requests[math.random(#requests)] end
`

// startEnvoy sets the addresses of the listeners in behind.
func (b *bench) startEnvoy(behind []limitedBy) {
	app := must(freeAddress())
	for i := range behind {
		behind[i].Listen = must(freeAddress())
	}
	t := must(template.New("envoy").Parse(envoyConfig))
	var config bytes.Buffer
	check(t.Execute(&config, map[string]any{"App": limitedBy{Listen: app}, "Behind": behind}))
	file := filepath.Join(b.dir, "envoy.yaml")
	check(os.WriteFile(file, config.Bytes(), 0o600))
	b.started(startChild(b, "envoy", behind[len(behind)-1].Listen, b.Envoy,
		"-c", file, "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "error"))
}
