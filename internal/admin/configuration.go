package admin

import (
	"cmp"
	"net/http"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Reload is how the last load of a configuration went.
type Reload struct {
	// Paths the configuration is read from.
	Paths []string
	// Loaded is when the configuration in use was loaded.
	Loaded time.Time
	// Failed is when a later one was refused; zero: none was. Refused says why.
	Failed  time.Time
	Refused []Refusal
	// Stale are the domains that the last one did not change, because of a mistake in them.
	Stale []string
	// Changes is how the configuration in use differs from the one before it; nil: there was none before it.
	Changes *Changes
}

// Refusal is a mistake in a configuration that was refused, with the lines around it as they were then.
type Refusal struct {
	Text  string
	Lines []sourceLine
}

// maxRefusals bounds the mistakes that are kept.
const maxRefusals = 50

// Refusals describes the mistakes of problems. It reads the files.
func Refusals(problems config.Problems) (all []Refusal) {
	for _, p := range problems {
		if p.Warning {
			continue
		}
		if len(all) == maxRefusals {
			return append(all, Refusal{Text: "There are more. rlsidecar check finds all of them."})
		}
		r := Refusal{Text: p.String()}
		if p.Line > 0 {
			r.Lines = excerptAround(p.File, p.Line)
		}
		all = append(all, r)
	}
	return all
}

// Changes is how one configuration differs from the one before it, limit by limit.
type Changes struct {
	Rows []Changed
	// Added, Removed and Edited are how many limits there are of each, in Rows or not.
	Added, Removed, Edited int
}

// Changed is one limit that differs; Before or After is "" where it was added or removed.
type Changed struct{ Domain, Limit, Before, After, Place string }

// maxChanged bounds the rows of Changes.
const maxChanged = 200

// Compare compares two configurations.
func Compare(before, after *limiter.Snapshot) *Changes {
	c := &Changes{}
	var kept catalogs
	old, now := kept.of(before).limits, kept.of(after).limits
	for len(old) > 0 || len(now) > 0 {
		order := 0
		switch {
		case len(old) == 0:
			order = 1
		case len(now) == 0:
			order = -1
		default:
			order = cmp.Or(cmp.Compare(old[0].Domain, now[0].Domain), cmp.Compare(old[0].Name, now[0].Name))
		}
		switch {
		case order < 0:
			c.Removed++
			c.add(old[0], nil)
			old = old[1:]
		case order > 0:
			c.Added++
			c.add(nil, now[0])
			now = now[1:]
		default:
			if old[0] != now[0] && describe(old[0]) != describe(now[0]) {
				c.Edited++
				c.add(old[0], now[0])
			}
			old, now = old[1:], now[1:]
		}
	}
	return c
}

func (c *Changes) add(before, after *descriptors.Policy) {
	if len(c.Rows) == maxChanged {
		return
	}
	var row Changed
	for _, l := range []*descriptors.Policy{before, after} {
		if l != nil {
			row.Domain, row.Limit, row.Place = descriptors.Printable(l.Domain), descriptors.Printable(l.Name), l.Place.String()
		}
	}
	if before != nil {
		row.Before = describe(before)
	}
	if after != nil {
		row.After = describe(after)
	}
	c.Rows = append(c.Rows, row)
}

// describe is all that the page says of a limit, in a text.
func describe(l *descriptors.Policy) string {
	parts := []string{l.Words()}
	for _, f := range facts(l) {
		parts = append(parts, f.Name+": "+f.Text)
	}
	return strings.Join(parts, "; ")
}

// configurationBody is what configuration.html shows.
type configurationBody struct {
	Reload
	Hash            string
	Limits, Domains string
	Stays           string
	LoadedAt        string
	FailedAt        string
	More            string
}

func (p *pages) configuration(w http.ResponseWriter, r *http.Request, v visitor) {
	b := configurationBody{Reload: p.Reload()}
	b.LoadedAt, b.FailedAt = at(b.Loaded), at(b.Failed)
	if s := p.Current(); s != nil {
		b.Hash = cut(s.Hash, 12)
		b.Limits = plural(int64(len(p.catalogs.of(s).limits)), "limit")
		b.Domains = plural(int64(len(s.Domains)), "domain")
		b.Stays = "The configuration before it stays in use."
	}
	if len(b.Stale) > 0 {
		b.Stays = "These domains stay as they were before, or are answered by on_backend_failure if they never were without a mistake: " +
			strings.Join(b.Stale, ", ") + ". The others are in use as they are configured."
	}
	if c := b.Changes; c != nil && c.Added+c.Removed+c.Edited > len(c.Rows) {
		b.More = plural(int64(c.Added+c.Removed+c.Edited-len(c.Rows)), "more limit")
	}
	p.show(w, r, v, http.StatusOK, configurationPage, frame{Title: "Configuration", Section: "/configuration", Body: b})
}
