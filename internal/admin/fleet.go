package admin

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/status"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const (
	// lateAfter is the age, in seconds, of a report after which its sidecar counts as missing. A sidecar stores a report
	// every ten seconds.
	lateAfter  = 35
	maxMembers = 500
)

type fleetBody struct {
	Off     bool
	Problem string
	Rows    []memberRow
	Summary string
	Old     bool
	More    string
}

type memberRow struct {
	ID, Version, Config, Seen, Up, Allowed, Denied, Wrong string
	Self, Old, Late                                       bool
}

func (p *pages) fleet(w http.ResponseWriter, r *http.Request, v viewer) {
	ctx, cancel := context.WithTimeout(r.Context(), lookupTime)
	defer cancel()
	fleet := p.Status(ctx).Fleet
	b := fleetBody{Off: fleet.Self == ""}
	if !b.Off {
		p.members(&b, &fleet)
	}
	p.show(w, r, v, http.StatusOK, fleetPage, frame{Title: "Fleet", Section: "/fleet", Live: true, Body: b})
}

// members adds a row to b for each sidecar in f. The newest configuration is the one that any sidecar has
// loaded last.
func (p *pages) members(b *fleetBody, f *status.Fleet) {
	if f.Problem != "" {
		b.Problem = descriptors.Printable(f.Problem)
	}
	newest := status.Sidecar{}
	for _, m := range f.Sidecars {
		if m.Loaded.After(newest.Loaded) {
			newest = m
		}
	}
	slices.SortFunc(f.Sidecars, func(a, b status.Sidecar) int {
		old := func(m status.Sidecar) int {
			if m.Config != newest.Config {
				return 0
			}
			return 1
		}
		return cmp.Or(old(a)-old(b), cmp.Compare(a.ID, b.ID))
	})
	now, old := p.Now(), 0
	for _, m := range f.Sidecars {
		row := memberRow{
			ID: descriptors.Printable(m.ID), Version: descriptors.Printable(m.Version), Config: or(descriptors.Printable(m.Config), "none"),
			Seen: span(time.Duration(m.Age*float64(time.Second))) + " ago", Up: span(max(0, now.Sub(m.Started))), Allowed: count(m.Allowed), Denied: count(m.Denied),
			Wrong: descriptors.Printable(m.Wrong), Self: m.ID == f.Self, Old: m.Config != newest.Config, Late: m.Age > lateAfter,
		}
		if row.Old {
			old++
		}
		if len(b.Rows) < maxMembers {
			b.Rows = append(b.Rows, row)
		}
	}
	b.Summary = plural(int64(len(f.Sidecars)), "sidecar") + "."
	if b.Old = old > 0; b.Old {
		b.Summary += " " + plural(int64(old), "sidecar") + " with a configuration other than the one that was loaded last."
	}
	if n := len(f.Sidecars) - len(b.Rows); n > 0 {
		b.More = plural(int64(n), "more sidecar")
	}
}
