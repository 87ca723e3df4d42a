package admin

import (
	"context"
	"fmt"
	"net/http"
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
	Store   []fact
	Servers []serverRow
	// Old says since when the store and the list could not be read, or is "".
	Old     string
	Alone   bool
	Rows    []memberRow
	Summary string
	// Differ means that a sidecar has another configuration than most.
	Differ bool
	More   string
}

type serverRow struct {
	Address, Version, Role, Memory, Eviction string
	// Evicts means that buckets may be evicted. Replica means that the server is not a master.
	Evicts, Replica bool
}

type memberRow struct {
	ID, Link, Version, Config, Load, Allowed, Denied, Seen, Up, Wrong string
	Self, Other, OtherVersion, Late                                   bool
}

func (p *pages) fleet(w http.ResponseWriter, r *http.Request, v viewer) {
	ctx, cancel := context.WithTimeout(r.Context(), lookupTime)
	defer cancel()
	st := p.Status(ctx)
	b := fleetBody{Alone: st.Fleet.Self == "", Store: storeFacts(&st.Store)}
	for _, s := range st.Store.Servers {
		row := serverRow{Address: descriptors.Printable(s.Address), Version: descriptors.Printable(s.Version), Role: descriptors.Printable(s.Role),
			Memory: size(s.Memory) + ", no bound", Eviction: descriptors.Printable(s.Eviction), Evicts: s.Eviction != "noeviction", Replica: s.Role == "slave"}
		if s.MaxMemory > 0 {
			row.Memory = fmt.Sprintf("%s of %s (%d %%)", size(s.Memory), size(s.MaxMemory), 100*s.Memory/s.MaxMemory)
		}
		b.Servers = append(b.Servers, row)
	}
	if problem := or(st.Store.Problem, st.Fleet.Problem); problem != "" {
		b.Old = "as of " + at(st.Fleet.AsOf) + ": " + descriptors.Printable(problem)
	}
	p.members(&b, &st.Fleet)
	p.show(w, r, v, http.StatusOK, fleetPage, frame{Title: "Store and fleet", Section: "/fleet", Live: true, Body: b})
}

func storeFacts(s *status.Store) (list []fact) {
	if s.Kind == "memory" {
		return []fact{{"Buckets are in", "the memory of this sidecar, which shares them with no other"}, {"Buckets", fmt.Sprintf("%s of at most %s", count(s.Keys), count(s.MaxKeys))}}
	}
	times := "no calls in the last minute"
	if s.P99 > 0 {
		times = fmt.Sprintf("half within %s, 99 %% within %s, of the last minute", short(micros(s.Median)), short(micros(s.P99)))
	}
	return []fact{{"Calls", times}, {"Timeout", short(micros(s.Timeout)) + " (--backend-timeout)"}, {"Failed", plural(s.Failures, "call") + " since the start"}}
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

func size(bytes int64) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%.0f KiB", float64(bytes)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

// members adds a row to b for each sidecar in f, in the order of their names. Those that differ from most are marked.
func (p *pages) members(b *fleetBody, f *status.Fleet) {
	config := mostFrequent(f.Sidecars, func(s *status.Sidecar) string { return s.Config })
	version := mostFrequent(f.Sidecars, func(s *status.Sidecar) string { return s.Version })
	now, others := p.Now(), 0
	for i := range f.Sidecars {
		m := &f.Sidecars[i]
		row := memberRow{
			ID: descriptors.Printable(m.ID), Link: m.Link, Version: descriptors.Printable(m.Version), Config: or(descriptors.Printable(m.Config), "none"),
			Load: fmt.Sprintf("%.2f", m.Load), Allowed: rate(m.AllowedRate), Denied: rate(m.DeniedRate), Seen: span(time.Duration(m.Age*float64(time.Second))) + " ago",
			Up: span(max(0, now.Sub(m.Started))), Wrong: descriptors.Printable(m.Wrong),
			Self: m.ID == f.Self, Other: m.Config != config, OtherVersion: m.Version != version, Late: m.Age > lateAfter,
		}
		if row.Other {
			others++
		}
		if len(b.Rows) < maxMembers {
			b.Rows = append(b.Rows, row)
		}
	}
	b.Summary = plural(len(f.Sidecars), "sidecar") + "."
	if b.Differ = others > 0; b.Differ {
		b.Summary += " " + plural(others, "sidecar") + " with another configuration than most."
	}
	if n := len(f.Sidecars) - len(b.Rows); n > 0 {
		b.More = plural(n, "more sidecar")
	}
}

// mostFrequent returns the value that most sidecars have. Of equally frequent values it returns the one that was loaded
// last.
func mostFrequent(list []status.Sidecar, value func(*status.Sidecar) string) (most string) {
	counts, loaded := map[string]int{}, map[string]time.Time{}
	for i := range list {
		v := value(&list[i])
		counts[v]++
		if list[i].Loaded.After(loaded[v]) {
			loaded[v] = list[i].Loaded
		}
	}
	for v, n := range counts {
		if n > counts[most] || n == counts[most] && loaded[v].After(loaded[most]) {
			most = v
		}
	}
	return most
}
