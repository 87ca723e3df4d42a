package admin

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Report is what a sidecar stores in Redis for the other sidecars that share it.
type Report struct {
	Version string `json:"version"`
	// Config identifies the configuration. Loaded is when it was loaded.
	Config  string    `json:"config"`
	Loaded  time.Time `json:"loaded"`
	Started time.Time `json:"started"`
	// Allowed and Denied are the numbers of requests since the start.
	Allowed uint64 `json:"allowed"`
	Denied  uint64 `json:"denied"`
	// Wrong is the name of the worst condition, or "" without conditions.
	Wrong string `json:"wrong,omitempty"`
}

// Member is a sidecar with its Report. Age is the age of the Report.
type Member struct {
	ID  string
	Age time.Duration
	Report
}

// Fleet lists the sidecars that share a Redis.
type Fleet struct {
	Self    string
	Members []Member
	// Problem is the reason why the list is incomplete, or nil.
	Problem error
}

const (
	// lateAfter is the age of a report after which its sidecar counts as missing. A sidecar stores a report
	// every ten seconds.
	lateAfter  = 35 * time.Second
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
	b := fleetBody{Off: p.Fleet == nil}
	if p.Fleet != nil {
		ctx, cancel := context.WithTimeout(r.Context(), lookupTime)
		defer cancel()
		fleet := p.Fleet(ctx)
		p.members(&b, &fleet)
	}
	p.show(w, r, v, http.StatusOK, fleetPage, frame{Title: "Fleet", Section: "/fleet", Live: true, Body: b})
}

// members adds a row to b for each sidecar in f. The newest configuration is the one that any sidecar has
// loaded last.
func (p *pages) members(b *fleetBody, f *Fleet) {
	if f.Problem != nil {
		b.Problem = descriptors.Printable(f.Problem.Error())
	}
	newest := Member{}
	for _, m := range f.Members {
		if m.Loaded.After(newest.Loaded) {
			newest = m
		}
	}
	slices.SortFunc(f.Members, func(a, b Member) int {
		old := func(m Member) int {
			if m.Config != newest.Config {
				return 0
			}
			return 1
		}
		return cmp.Or(old(a)-old(b), cmp.Compare(a.ID, b.ID))
	})
	now, old := p.Now(), 0
	for _, m := range f.Members {
		row := memberRow{
			ID: descriptors.Printable(m.ID), Version: descriptors.Printable(m.Version), Config: or(descriptors.Printable(m.Config), "none"),
			Seen: span(m.Age) + " ago", Up: span(max(0, now.Sub(m.Started))), Allowed: count(m.Allowed), Denied: count(m.Denied),
			Wrong: descriptors.Printable(m.Wrong), Self: m.ID == f.Self, Old: m.Config != newest.Config, Late: m.Age > lateAfter,
		}
		if row.Old {
			old++
		}
		if len(b.Rows) < maxMembers {
			b.Rows = append(b.Rows, row)
		}
	}
	b.Summary = plural(int64(len(f.Members)), "sidecar") + "."
	if b.Old = old > 0; b.Old {
		b.Summary += " " + plural(int64(old), "sidecar") + " with a configuration other than the one that was loaded last."
	}
	if n := len(f.Members) - len(b.Rows); n > 0 {
		b.More = plural(int64(n), "more sidecar")
	}
}
