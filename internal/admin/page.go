package admin

import (
	"bytes"
	_ "embed"
	"fmt"
	"html"
	"net/http"
	"strings"
	"time"
)

//go:embed head.html
var head string

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
	c.limits(&p)
	p.print("</html>\n")
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
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
