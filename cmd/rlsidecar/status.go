package main

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/httpapi"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/status"
)

type statusCmd struct {
	adminFlags
}

func (statusCmd) Help() string {
	return `Shows on one screen whether a running sidecar is ready, its problems with their remedies,
its traffic, its store, the sidecars that share the store, and what is denied most. Exits with
1 if something is wrong: the sidecar is not ready, has a problem, or denies more than half of
the requests.

Example:

  rlsidecar status
  rlsidecar status --format json`
}

// currentState is the answer of the command in JSON.
type currentState struct {
	status.Status
	Denied httpapi.TopAnswer `json:"denied"`
}

func (c *statusCmd) Run(a *app) error {
	var now currentState
	if _, err := c.call(a, http.MethodGet, "/api/status", nil, &now.Status); err != nil {
		return err
	}
	if _, err := c.call(a, http.MethodGet, "/api/top?n=5", nil, &now.Denied); err != nil {
		return err
	}
	err := c.print(a.stdout, now, statusText)
	if err == nil && (!now.Ready || now.State.Level != status.Green) {
		return exitError{code: exitNo}
	}
	return err
}

const statusText = `state | {{.State.Text}}
ready | {{if .Ready}}yes{{else}}no: {{oneLine .NotReady}}{{end}}
sidecar | version {{.Version}}, up for {{ago .Started}}
limits | {{if .Config}}configuration {{cut .Config}}, loaded {{ago .Loaded}} ago{{else}}none loaded{{end}}
{{with .Traffic}}
traffic | {{rate .Allowed}} requests/s allowed, {{rate .Denied}} denied, {{rate .WouldBeDenied}} would be denied by shadow limits
decisions | {{template "times" .}}
{{end}}
{{with .Store}}
{{if eq .Kind "memory"}}
store | memory: {{.Keys}} of at most {{.MaxKeys}} buckets
{{else}}
store | {{.Kind}}: {{template "times" .}}, timeout {{micros .Timeout}}, {{.Failures}} failures since the start
{{range .Servers}}
 | {{safe .Address}}: {{safe .Version}}, {{safe .Role}}, {{mebibytes .Memory}} MiB{{with .MaxMemory}} of {{mebibytes .}}{{end}}, eviction {{safe .Eviction}}
{{end}}
{{template "stale" .}}
{{end}}
{{end}}
{{with $fleet := .Fleet}}
{{if .Self}}
fleet | {{count (len .Sidecars) "sidecar"}}
{{range .Sidecars}}
 | {{safe .ID}}: version {{safe .Version}}, configuration {{cut .Config}}, {{rate .AllowedRate}} requests/s allowed,
{{- " "}}{{rate .DeniedRate}} denied, load {{printf "%.2f" .Load}}
{{- with .Wrong}}, {{safe .}}{{end}}{{if eq .ID $fleet.Self}} (this one){{end}}
{{end}}
{{template "stale" .}}
{{end}}
{{end}}
{{range .Conditions}}

{{.Name}}, for {{ago .Since}}: {{.Summary}}
  {{.Remedy}}
{{with .Error}}
  error: {{safe .}}
{{end}}
{{else}}
{{with .State}}
{{if .Remedy}}

{{.Cause}}
  {{.Remedy}}
{{end}}
{{end}}
{{end}}
{{if .Denied.Denied}}

denied since {{.Denied.Since.UTC.Format "15:04:05 UTC"}}:
{{template "parts" shared .Denied.Parts 3}}
{{template "denied" .Denied.Denied}}
{{end}}
{{define "times"}}
{{if .P99}}p50 {{micros .Median}}, p99 {{micros .P99}}{{else}}none in the last minute{{end}}
{{- end}}
{{define "stale"}}
{{with .Problem}}
 | {{if not $.AsOf.IsZero}}as of {{ago $.AsOf}} ago: {{end}}{{safe .}}
{{end}}
{{end}}
` + topTables

func oneLine(text string) string { return strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ") }

func mebibytes(bytes int64) string { return fmt.Sprintf("%.1f", float64(bytes)/(1<<20)) }
