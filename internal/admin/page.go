package admin

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html"
	"net/http"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/denials"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

//go:embed head.html
var head string

// policy lets a browser take from the page its own style, and nothing else from anywhere.
var policy = func() string {
	_, rest, _ := strings.Cut(head, "<style>")
	style, _, _ := strings.Cut(rest, "</style>")
	digest := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(digest[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

const day = "2006-01-02 15:04:05 UTC"

// page writes HTML. Not html/template: it finds methods by names that the linker cannot see, which
// keeps every method of every package in the program: eight megabytes.
type page struct{ bytes.Buffer }

// print writes markup; the arguments are text.
func (p *page) print(markup string, texts ...any) {
	for i, text := range texts {
		texts[i] = html.EscapeString(fmt.Sprint(text))
	}
	fmt.Fprintf(p, markup, texts...)
}

func (c *Config) index(w http.ResponseWriter, _ *http.Request) {
	var p page
	p.WriteString(head)
	p.print("<h1>rlsidecar <small>%s</small></h1>\n", c.Version)
	p.print(`<p><a href="/metrics">metrics</a> · <a href="/rlconfig">rlconfig</a> · <a href="/debug/pprof/">profiles</a></p>` + "\n")
	c.configuration(&p)
	c.denied(&p)
	c.limits(&p)
	p.print("</html>\n")
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", policy)
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	_, _ = p.WriteTo(w) // an error is the reader's
}

// configuration tells which is in use, and what was wrong with a later one.
func (c *Config) configuration(p *page) {
	p.print("<h2>Configuration</h2>\n")
	reload, stays := c.Reload(), ""
	if s := c.Current(); reload.Loaded.IsZero() || s == nil {
		p.print("<p>There is none yet.</p>\n")
	} else {
		p.print("<p>Loaded %s from %s <small>%.12s</small></p>\n", at(reload.Loaded), strings.Join(reload.Paths, ", "), s.Hash)
		stays = "; the one before it stays in use"
	}
	if len(reload.Stale) > 0 {
		stays = " for these domains, which stay as they were before, or are answered by on_backend_failure if they never were without a mistake: " + strings.Join(reload.Stale, ", ")
	}
	if !reload.Failed.IsZero() {
		p.print("<p>The one found %s was refused%s:</p>\n<pre>%s</pre>\n", at(reload.Failed), stays, reload.Problems)
	}
}

func at(t time.Time) string { return t.UTC().Format(day) }

// mostShown is how many keys the page shows.
const mostShown = 50

// reasons are denials' in words.
var reasons = map[string]string{
	denials.Limit:    "the limit was reached",
	denials.Never:    "it asked for more than the limit can ever give",
	denials.Backend:  "the store could not decide",
	denials.Full:     "no room for another bucket in memory",
	denials.NoConfig: "no configuration of the domain yet",
	denials.NoRoute:  "no route of auth, or no descriptor left",
}

// denied lists the keys denied most.
func (c *Config) denied(p *page) {
	since, top := c.Denied(mostShown)
	p.print("<h2>Denied most <small>since %s</small></h2>\n<table>\n"+
		`<tr><th class="n">times<th>why<th>domain<th>limit<th>key<th>last`+"\n", at(since))
	for _, d := range top {
		orMore, cut := "", ""
		if !d.Exact {
			orMore = " or more"
		}
		if d.Cut {
			cut = "…"
		}
		p.print(`<tr><td class="n">%v%s<td>%s<td>%s<td>%s<td>%s%s<td><small>%s</small>`+"\n",
			d.Times, orMore, reasons[d.Why], descriptors.Printable(d.Domain), descriptors.Printable(d.Limit), shown(&d), cut, at(d.Last))
	}
	if len(top) == 0 {
		p.print(`<tr><td colspan="6">nobody` + "\n")
	}
	p.print("</table>\n")
}

// shown is a key as text, whatever bytes it is of.
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
func (c *Config) limits(p *page) {
	p.print("<h2>Limits</h2>\n<table>\n" +
		`<tr><th>domain<th>limit<th>what it allows<th><th class="n">allowed<th class="n">denied<th>at` + "\n")
	seen := map[string]bool{}
	if s := c.Current(); s != nil {
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
			p.print(`<tr><td>%s<td>%s<td>%s<td>%s<td class="n">%v<td class="n">%v<td><small>%s</small>`+"\n",
				l.Domain, l.Name, l.Words(), strings.Join(modes, " "), allowed, denied, l.Place)
		}
	}
	if len(seen) == 0 {
		p.print(`<tr><td colspan="7">none` + "\n")
	}
	p.print("</table>\n")
}
