package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/httpapi"
	"github.com/rlsidecar/rlsidecar/internal/spelling"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/status"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type topCmd struct {
	Unmatched bool   `help:"List instead the requests that matched no limit, by the keys of their descriptors."`
	By        string `placeholder:"ENTRY" help:"Group the denied keys by a part: the key of an entry, such as tenant, or limit."`
	Shadow    bool   `help:"List instead the keys that limits in shadow mode would deny."`
	Limit     string `placeholder:"NAME" help:"Only keys of this limit."`
	Once      bool   `help:"Print the list once, also on a terminal."`
	Count     int    `short:"n" default:"20" help:"Number of keys to list, up to 1000 (${default})."`
	adminFlags
}

func (topCmd) Help() string {
	return `Lists the keys that a running sidecar denied most in the last five to ten minutes, and the
busiest keys, with their rates of about the last 10 s (/S). On a terminal it refreshes the list
every second until you press q. IN FLIGHT has the units in flight of those keys whose limit has
algorithm: concurrency, for all sidecars. The reasons are:

  limit               the limit was reached
  penalty             the penalty of the limit blocks the key; rlsidecar get shows until when
  blocked             an operator's adjustment blocks the key
  never               the cost is more than the limit can ever allow
  backend-failure     the store did not decide in time (one line for all keys of a limit)
  no-room             --memory-max-keys is reached (one line for all keys of a limit)
  missing-descriptor  the request lacks an entry that its domain requires (one line for the domain)
  no-config           the domain has no configuration yet (one line for the domain)
  no-route            no route of auth matched, or none of its descriptors could be made
  no-auth             the configuration has no auth section, and a proxy calls /v1/auth

With --by, each line is one value of a part of the keys, such as one tenant with all its keys.
With --unmatched, it lists the requests that matched no limit and were therefore allowed, such
as those with a typo in the domain or in the key of a descriptor. Values are not kept.

Each sidecar counts only its own decisions. Counts are exact, or marked "at least".

Example:

  rlsidecar top
  rlsidecar top --by tenant
  rlsidecar top --once -n 5 --limit per_key
  rlsidecar top --shadow --format json`
}

func (c *topCmd) Run(a *app) error {
	if c.Unmatched {
		return c.unmatched(a)
	}
	screen := terminalOf(a)
	if c.Once || c.Format != "text" || screen == nil {
		top, err := c.read(a)
		if err != nil {
			return err
		}
		if c.Format == "json" {
			return writeJSON(a.stdout, top)
		}
		return c.write(a.stdout, top)
	}
	return screen.refresh(a, time.Second, func(w io.Writer) error {
		var now status.Status
		if _, err := c.call(a, http.MethodGet, "/api/status", nil, &now); err != nil {
			return err
		}
		top, err := c.read(a)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s    (q ends)\n", now.State.Text)
		top.Denied = first(top.Denied, 12) // so that the busiest are on the screen, too
		return c.write(w, top)
	})
}

// read returns what is to be listed.
func (c *topCmd) read(a *app) (*httpapi.TopAnswer, error) {
	n := c.Count
	if n > 0 && n <= mostTop && (c.By != "" || c.Limit != "") {
		n = mostTop // what to list is chosen here
	}
	query := url.Values{"n": {strconv.Itoa(n)}}
	if c.Shadow {
		query.Set("shadow", "true")
	}
	top := &httpapi.TopAnswer{}
	if _, err := c.call(a, http.MethodGet, "/api/top?"+query.Encode(), nil, top); err != nil {
		return nil, err
	}
	if c.Limit != "" {
		top.Denied = slices.DeleteFunc(top.Denied, func(k httpapi.DeniedKey) bool { return k.Name != c.Limit })
		top.Busiest = slices.DeleteFunc(top.Busiest, func(k httpapi.UsedKey) bool { return k.Name != c.Limit })
		top.InFlight = slices.DeleteFunc(top.InFlight, func(k httpapi.FlightKey) bool { return k.Name != c.Limit })
		top.Parts = slices.DeleteFunc(top.Parts, func(p httpapi.DeniedPart) bool { return p.Name != c.Limit })
		top.Limits = slices.DeleteFunc(top.Limits, func(p httpapi.DeniedPart) bool { return p.Name != c.Limit })
	}
	switch c.By {
	case "":
	case "limit":
		top.Parts = top.Limits
	default:
		var entries []string
		for _, p := range top.Parts {
			entries = append(entries, p.Entry)
		}
		top.Parts = slices.DeleteFunc(top.Parts, func(p httpapi.DeniedPart) bool { return p.Entry != c.By })
		slices.Sort(entries)
		if entries = slices.Compact(entries); len(top.Parts) == 0 && len(entries) > 0 {
			return nil, exitError{exitNo, fmt.Errorf("no denied key has the part %q; the parts are %s%s", c.By, strings.Join(entries, ", "), spelling.DidYouMean(c.By, entries))}
		}
	}
	if top.Denied, top.Parts = first(top.Denied, c.Count), first(top.Parts, c.Count); c.By != "" {
		top.Denied, top.Busiest, top.InFlight = nil, nil, nil
	}
	top.Busiest = first(top.Busiest, c.Count)
	return top, nil
}

// mostTop is the most keys that a sidecar lists.
const mostTop = 1000

func first[T any](list []T, n int) []T { return list[:min(n, len(list))] }

func (c *topCmd) write(w io.Writer, top *httpapi.TopAnswer) error {
	if c.By == "" {
		top.Parts = shared(top.Parts, 5)
	}
	top.Busiest, top.InFlight = first(top.Busiest, 5), first(top.InFlight, 5)
	return writeText(w, struct {
		*httpapi.TopAnswer
		Shadow bool
	}{top, c.Shadow}, topText)
}

func share(p httpapi.DeniedPart) string { return fmt.Sprintf("%.0f %%", 100*p.Share) }

// shared returns up to n of the parts that several denied keys have. The list of keys has the others, too.
func shared(parts []httpapi.DeniedPart, n int) []httpapi.DeniedPart {
	return first(slices.DeleteFunc(slices.Clone(parts), func(p httpapi.DeniedPart) bool { return p.Keys < 2 }), n)
}

const topText = `{{if or .Parts .Denied}}
since {{when .Since}}
{{else}}
{{if .Shadow}}no limit in shadow mode would have denied a request{{else}}no request was denied{{end}} since {{when .Since}}
{{with .Unmatched}}
at least {{.}} requests matched no limit and were allowed: rlsidecar top --unmatched shows them
{{end}}
{{end}}
{{template "parts" .Parts}}
{{template "denied" .Denied}}
{{if .Busiest}}
BUSIEST | /S | LEFT | OF | DOMAIN | LIMIT | KEY
{{end}}
{{range .Busiest}}
{{.Units}} | {{rate .Rate}} | {{.Remaining}} | {{.Capacity}} | {{safe .Domain}} | {{safe .Name}} | {{.Key}}{{if .Cut}}…{{end}}
{{end}}
{{flush}}
{{if .InFlight}}
IN FLIGHT | OF | DOMAIN | LIMIT | KEY
{{end}}
{{range .InFlight}}
{{.InFlight}} | {{.Capacity}} | {{safe .Domain}} | {{safe .Name}} | {{.Key}}
{{end}}
` + topTables

const topTables = `{{define "parts"}}
{{if .}}
DENIED | /S | SHARE | KEYS | DOMAIN | LIMIT | PART
{{end}}
{{range .}}
{{if not .Exact}}at least {{end}}{{.Denied}} | {{rate .Rate}} | {{share .}} | {{.Keys}} | {{safe .Domain}} | {{safe .Name}} |
  {{if .Position}}{{safe .Entry}}={{.Value}}{{if .Cut}}…{{end}}{{end}}
{{end}}
{{flush}}
{{end}}
{{define "denied"}}
{{if .}}
DENIED | /S | WHY | DOMAIN | LIMIT | KEY
{{end}}
{{range .}}
{{if not .Exact}}at least {{end}}{{.Denied}} | {{rate .Rate}} | {{safe .Why}} | {{safe .Domain}} | {{safe .Name}} | {{deniedKey .}}{{if .Cut}}…{{end}}
{{end}}
{{flush}}
{{end}}
`

// deniedKey returns the key of d, as a descriptor if it came as one.
func deniedKey(d httpapi.DeniedKey) string {
	if d.Descriptor == nil {
		return d.Key.String()
	}
	var entries []descriptors.Entry
	for _, e := range d.Descriptor {
		if len(e) == 2 {
			entries = append(entries, descriptors.Entry{Key: e[0], Value: e[1]})
		}
	}
	return descriptors.Format(entries)
}

func (c *topCmd) unmatched(a *app) error {
	var answer struct {
		Since     time.Time
		Unmatched []httpapi.UnmatchedShape
	}
	query := url.Values{"n": {strconv.Itoa(c.Count)}}
	return c.send(a, http.MethodGet, "/api/unmatched?"+query.Encode(), nil, &answer, `{{if .Unmatched}}
since {{when .Since}}
REQUESTS | WHY | DOMAIN | KEYS OF THE DESCRIPTORS
{{else}}
every request matched a limit since {{when .Since}}
{{end}}
{{range .Unmatched}}
at least {{.Requests}} | {{if .Configured}}no limit matches{{else}}no such domain{{end}} | {{safe .Domain}} |
  {{range $i, $keys := .Descriptors}}{{if $i}} {{"|"}} {{end}}{{$keys}}{{end}}{{if .Cut}}…{{end}}
{{end}}
`)
}
