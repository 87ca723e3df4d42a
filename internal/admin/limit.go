package admin

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const maxListRows = 20

type limitBody struct {
	Domain, Name, Words, Mode string
	// ID contains the domain and name as raw bytes, for the form.
	ID               history.Key
	Facts            []fact
	Place, PlaceNote string
	Chart            chart
	Total            history.Totals
	UsedSince        string
	Denied, Shadowed who
	Used             []usedRow
	// Keys has the labels of the fields of each form for a key: for each use of the limit the names of the values that
	// identify a bucket. None means that this use has only one bucket. Whole means that all entries of a descriptor can
	// identify one, and Free that applications choose the values.
	Keys        [][]string
	Whole, Free bool
	Unlimited   bool
	Adjustments []adjustedRow
	// Settling describes the reservations. It is empty for a limit without settle.
	Settling []fact
	// Raise and Block are links to forms that change all keys. They are "" if adjustments are not enabled, or if the
	// client may not make changes. Block is also "" while all keys are blocked.
	Raise, Block string
}

type fact struct{ Name, Text string }

func (p *pages) limit(w http.ResponseWriter, r *http.Request, v viewer) {
	q := r.URL.Query()
	domain, name := q.Get("domain"), q.Get("name")
	s := p.Current()
	if s == nil || len(s.Find(domain, name)) == 0 {
		p.problem(w, r, v, http.StatusNotFound, "There is no limit of this name in the configuration in use.", "")
		return
	}
	l := s.Find(domain, name)[0]
	id := history.Key{Domain: domain, Limit: name}
	b := limitBody{
		ID:     id,
		Domain: descriptors.Printable(domain), Name: descriptors.Printable(name), Words: l.Words(), Mode: modes(l),
		Facts: facts(l), Chart: p.chartOf("/limit", q), Total: p.Totals(l), Unlimited: l.Unlimited, Settling: p.settling(l),
		Denied: p.who(p.Denied(maxCounted), &id), Shadowed: p.who(p.Shadowed(maxCounted), &id),
	}
	b.UsedSince, b.Used = p.used(id)
	place := l.Place
	if d := s.Domains[domain]; d != nil && d.Named[name] != nil {
		place = d.Named[name].Place // of the definition, not of a use
	}
	b.Place = place.String()
	if info, err := os.Stat(place.File); err == nil && info.ModTime().After(p.Reload().Loaded) {
		b.PlaceNote = "The file has changed since it was loaded."
	}
	b.addKeys(s.Find(domain, name))
	if p.Adjust != nil {
		b.Adjustments = p.adjustmentsOf(domain, name)
		if v.mayWrite {
			all := subject{Domain: domain, Limit: name}
			if b.Raise = changeLink("raise", &all, allKeys); !p.blocked(adjust.Target{Domain: domain, Limit: name, AllKeys: true}) {
				b.Block = changeLink("block", &all, allKeys)
			}
		}
	}
	p.show(w, r, v, http.StatusOK, limitPage, frame{Title: "Limit " + b.Name, Live: true, Body: b})
}

func (b *limitBody) addKeys(uses []*limiter.Policy) {
	for _, use := range uses {
		switch {
		case use.Extra().Named:
			b.Free = len(uses) == 1 // the keys of descriptors that use the limit are those of applications too
			continue
		case use.Whole:
			b.Whole = true
			continue
		}
		var names []string
		for _, key := range use.Extra().OpenKeys {
			names = append(names, descriptors.Printable(key))
		}
		if !slices.ContainsFunc(b.Keys, func(known []string) bool { return slices.Equal(known, names) }) && len(b.Keys) < maxListRows {
			b.Keys = append(b.Keys, names)
		}
	}
}

func (p *pages) adjustmentsOf(domain, name string) (rows []adjustedRow) {
	all, _ := p.Adjust.List()
	for i := range all {
		if t := &all[i].Target; t.Domain == domain && t.Limit == name && len(rows) < maxListRows {
			rows = append(rows, adjusted(all[i]))
		}
	}
	return rows
}

func facts(l *limiter.Policy) (list []fact) {
	for _, f := range l.Facts() {
		if (!f.Default || f.Name == "on_backend_failure") && f.Name != "settle" && !l.Unlimited {
			list = append(list, fact{f.Name, f.Text})
		}
	}
	return list
}

func moment(t algorithms.Micros) string { return at(time.UnixMicro(int64(t))) }

func (p *pages) settling(l *limiter.Policy) []fact {
	s := l.Extra().Settle
	if s == nil || p.Settling == nil {
		return nil
	}
	t := p.Settling(l)
	list := []fact{
		{"A request reserves now", p.reserves(l)},
		{"Reserved", fmt.Sprintf("%s, %s", plural(t.Reserved, "unit"), plural(t.Starts, "request"))},
		{"Settled with the real cost", plural(t.Settled, "time")},
		{"Settled without one (unknown_cost)", plural(t.Unknown, "time")},
		{"Settled late (after " + duration.Format(s.TTL) + ")", plural(t.Late, "time")},
		{"Real costs", plural(t.Real, "unit")},
		{"Lost beyond max_debt", plural(t.Lost, "unit")},
	}
	if ended := t.Settled + t.Unknown + t.Late; t.Starts > ended {
		list = append(list, fact{"Not settled by this sidecar", plural(t.Starts-ended, "request") + ": still running, settled by another sidecar, or never settled"})
	}
	return list
}

func (p *pages) reserves(l *limiter.Policy) string {
	s := l.Extra().Settle
	if s == nil {
		return ""
	}
	n, learned := p.Limiter.EstimateNow(l)
	text := plural(n, "unit") + " until its real cost is known"
	switch {
	case learned:
		return text + " (learned from real costs)"
	case s.Learn != nil:
		return text + " (the first estimate: too few real costs are known)"
	default:
		return text
	}
}
