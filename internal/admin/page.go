package admin

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/denials"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// policy lets a browser use the page's own style, and nothing else from anywhere.
var policy = func() string {
	_, rest, _ := strings.Cut(pageText, "<style>")
	style, _, _ := strings.Cut(rest, "</style>")
	digest := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(digest[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

// view is what page.html shows.
type view struct {
	Version string
	Loaded  *loaded  // nil: no configuration yet
	Refused *refused // nil: none was
	Since   string
	Denied  []deniedRow
	Limits  []limitRow
}

type loaded struct{ At, Paths, Hash string }

type refused struct{ At, Stays, Problems string }

type deniedRow struct{ Times, Why, Domain, Limit, Key, Last string }

type limitRow struct {
	Domain, Name, Words, Modes, Place string
	Allowed, Denied                   uint64
}

func (c *Config) index(w http.ResponseWriter, _ *http.Request) {
	v := view{Version: c.Version, Limits: c.limits()}
	v.Loaded, v.Refused = c.configuration()
	v.Since, v.Denied = c.denied()
	var body bytes.Buffer
	if err := page.Execute(&body, v); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", policy)
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	_, _ = body.WriteTo(w) // an error is the reader's
}

// configuration is the one in use, and what was wrong with a later one.
func (c *Config) configuration() (in *loaded, out *refused) {
	reload, stays := c.Reload(), ""
	if s := c.Current(); s != nil && !reload.Loaded.IsZero() {
		in = &loaded{at(reload.Loaded), strings.Join(reload.Paths, ", "), fmt.Sprintf("%.12s", s.Hash)}
		stays = "; the one before it stays in use"
	}
	if len(reload.Stale) > 0 {
		stays = " for these domains, which stay as they were before, or are answered by on_backend_failure if they never were without a mistake: " + strings.Join(reload.Stale, ", ")
	}
	if !reload.Failed.IsZero() {
		out = &refused{at(reload.Failed), stays, reload.Problems}
	}
	return in, out
}

const day = "2006-01-02 15:04:05 UTC"

func at(t time.Time) string { return t.UTC().Format(day) }

// mostShown is how many keys the page shows.
const mostShown = 50

// reasons are the reasons of denials in words.
var reasons = map[string]string{
	denials.Limit:    "the limit was reached",
	denials.Never:    "it asked for more than the limit can ever give",
	denials.Backend:  "the store could not decide",
	denials.Full:     "no room for another bucket in memory",
	denials.NoConfig: "no configuration of the domain yet",
	denials.NoRoute:  "no route of auth, or no descriptor left",
}

// denied lists the keys denied most.
func (c *Config) denied() (since string, rows []deniedRow) {
	from, top := c.Denied(mostShown)
	for _, d := range top {
		times, key := fmt.Sprint(d.Times), shown(&d)
		if !d.Exact {
			times += " or more"
		}
		if d.Cut {
			key += "…"
		}
		rows = append(rows, deniedRow{times, reasons[d.Why], descriptors.Printable(d.Domain), descriptors.Printable(d.Limit), key, at(d.Last)})
	}
	return at(from), rows
}

// shown is a key as text, whatever bytes it has.
func shown(d *denials.Denied) string {
	if d.Entries != nil {
		return descriptors.Format(d.Entries)
	}
	parts := make([]string, len(d.Key))
	for i, v := range d.Key {
		parts[i] = descriptors.Printable(v)
	}
	return strings.Join(parts, ",")
}

// limits lists them; a named limit is counted once, wherever it is used.
func (c *Config) limits() (rows []limitRow) {
	s := c.Current()
	if s == nil {
		return nil
	}
	seen := map[string]bool{}
	for _, l := range s.Policies {
		key := l.Domain + "\x00" + l.Name
		if seen[key] {
			continue
		}
		seen[key] = true
		var modes []string
		if l.Shadow {
			modes = append(modes, "shadow")
		}
		if l.Quota {
			modes = append(modes, "quota")
		}
		allowed, denied := c.Counts(l)
		rows = append(rows, limitRow{l.Domain, l.Name, l.Words(), strings.Join(modes, " "), l.Place, allowed, denied})
	}
	return rows
}
