package admin

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Reload is the result of the last load of the configuration.
type Reload struct {
	// Paths are the files and folders of the configuration.
	Paths []string
	// Loaded is when the current configuration was loaded.
	Loaded time.Time
	// Failed is when the last load found mistakes, and Refused has them. It is zero if there were none. The domains
	// without mistakes may be in use all the same; then Failed equals Loaded, and Stale has the other domains.
	Failed  time.Time
	Refused []Refusal
	// Stale are the domains with a mistake. Each keeps its last valid version, or has none.
	Stale []string
	// Changes are the differences from the previous configuration. It is nil if there was no previous one.
	Changes *Changes
}

// Refusal is a mistake in a rejected configuration, with the lines of the file that surrounded it at that
// time.
type Refusal struct {
	Text  string
	Lines []sourceLine
}

const maxRefusals = 50

// Refusals describes the mistakes in problems. It reads the files again to quote their lines.
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

// Changes are the differences between two configurations, limit by limit.
type Changes struct {
	Rows []Changed
	// Added, Removed and Edited are the numbers of limits that were added, removed and edited, including
	// limits that are not in Rows.
	Added, Removed, Edited int
}

// Changed is a limit that differs. Before is "" if the limit was added; After is "" if it was removed.
type Changed struct{ Domain, Limit, Before, After, Place string }

const maxChangedRows = 200

// Compare returns the differences from before to after.
func Compare(before, after *limiter.Snapshot) *Changes {
	c := &Changes{}
	var kept catalogs
	before, after = differing(before, after)
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
			if !alike(old[0], now[0]) && describe(old[0]) != describe(now[0]) {
				c.Edited++
				c.add(old[0], now[0])
			}
			old, now = old[1:], now[1:]
		}
	}
	return c
}

// differing returns the parts of two configurations that differ. It skips domains that a reload has kept
// because their files did not change, and limits that a reload has kept in a domain of many files.
func differing(before, after *limiter.Snapshot) (old, now *limiter.Snapshot) {
	old, now = &limiter.Snapshot{}, &limiter.Snapshot{}
	for name, d := range before.Domains {
		if after.Domains[name] != d {
			old.Policies = append(old.Policies, changed(d, after.Domains[name])...)
		}
	}
	for name, d := range after.Domains {
		if before.Domains[name] != d {
			now.Policies = append(now.Policies, changed(d, before.Domains[name])...)
		}
	}
	return old, now
}

// changed compares d with counterpart, the domain of the same name in the other configuration, which may be nil.
// It returns the policies of d that are not the same pointers as the policies at the same positions of
// counterpart. It returns all policies if positions cannot be compared: without a counterpart, with another
// number of policies, or if a domain has named limits, because several uses of a named limit count as one limit.
func changed(d, counterpart *limiter.Domain) (list []*limiter.Policy) {
	if counterpart == nil || len(d.Policies) != len(counterpart.Policies) || len(d.Named) > 0 || len(counterpart.Named) > 0 {
		return d.Policies
	}
	for i, p := range d.Policies {
		if p != counterpart.Policies[i] {
			list = append(list, p)
		}
	}
	return list
}

// alike reports whether a and b are certainly equal, except for Place and Index. It may return false for equal limits,
// for example if they have Extras of their own. The comparison saves memory: if one file of a large domain changes,
// all limits of the domain may be compiled again, and the descriptions of 100,000 limits occupy tens of MiB.
func alike(a, b *limiter.Policy) bool {
	return a == b || a.Domain == b.Domain && a.Name == b.Name && a.Owner == b.Owner && *a.Limit == *b.Limit && a.Prefix == b.Prefix &&
		slices.Equal(a.Open, b.Open) && a.Whole == b.Whole && a.Unlimited == b.Unlimited && a.Reference == b.Reference &&
		a.Shadow == b.Shadow && a.Quota == b.Quota && a.Alone == b.Alone && a.Detailed == b.Detailed && a.OnFailure == b.OnFailure &&
		a.Adjusted == b.Adjusted && a.RateName == b.RateName && a.StatKey == b.StatKey && a.Extras == b.Extras
}

func (c *Changes) add(before, after *limiter.Policy) {
	if len(c.Rows) == maxChangedRows {
		return
	}
	var row Changed
	for _, l := range []*limiter.Policy{before, after} {
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

func describe(l *limiter.Policy) string {
	parts := []string{l.Words()}
	for _, f := range facts(l) {
		parts = append(parts, f.Name+": "+f.Text)
	}
	return strings.Join(parts, "; ")
}

type configurationBody struct {
	Reload
	Hash            string
	Limits, Domains string
	Stays           string
	LoadedAt        string
	FailedAt        string
	More            string
}

func (p *pages) configuration(w http.ResponseWriter, r *http.Request, v viewer) {
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
