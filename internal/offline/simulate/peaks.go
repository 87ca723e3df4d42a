package simulate

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// peaks counts the units in flight of each key of a concurrency limit, as if no request had been denied.
type peaks struct {
	flying map[string]*flight // the keys with units in flight
	ends   queue[landing]
	// endless counts the requests that took a slot and for which the input has no duration.
	endless int64
	early   int64 // requests that ended before their time, because more than maxOpen were in flight
}

// flight describes a key of a concurrency limit since its first unit that is in flight.
type flight struct {
	row        *row
	key, shown string
	units      int64
	peak       int64
	at         algorithms.Micros // the time at which peak was reached
}

type landing struct {
	flight *flight
	units  int64
}

// inFlight counts the units of r from now until the request ends.
func (t *tally) inFlight(now algorithms.Micros, c *limiter.Call, r *limiter.Result, row *row) {
	if r.Cost <= 0 || r.Cost > r.Policy.Limit.Capacity {
		return // takes nothing, whatever else is in flight
	}
	after := t.end.after
	if after > r.Policy.Limit.Period() {
		row.outlived++
	}
	f := t.peaks.flying[string(r.Key)]
	if f == nil {
		f = &flight{row: row, key: string(r.Key), shown: string(t.show(nil, c, r))}
		t.peaks.flying[f.key] = f
	}
	f.units += r.Cost
	if f.units > f.peak {
		f.peak, f.at = f.units, now
	}
	t.peaks.ends.add(now+after, landing{f, r.Cost})
	if t.peaks.ends.len() > maxOpen {
		t.peaks.early++
		t.peaks.land()
	}
}

// until ends the requests whose end is at now or before.
func (p *peaks) until(now algorithms.Micros) {
	for p.ends.due(now) {
		p.land()
	}
}

// land ends the request whose end is the earliest.
func (p *peaks) land() {
	_, end := p.ends.take()
	f := end.flight
	if f.units -= end.units; f.units == 0 {
		delete(p.flying, f.key)
		f.row.remember(f)
	}
}

// remember keeps the topKeys keys with the highest peaks. A key that is dropped has a lower peak than those that are
// kept. If it has a higher one later, it is remembered again.
func (r *row) remember(f *flight) {
	if i := slices.IndexFunc(r.busiest, func(have *flight) bool { return have.key == f.key }); i < 0 {
		r.busiest = append(r.busiest, f)
	} else if f.peak > r.busiest[i].peak {
		r.busiest[i] = f
	}
	slices.SortStableFunc(r.busiest, func(x, y *flight) int { return cmp.Or(cmp.Compare(y.peak, x.peak), cmp.Compare(x.at, y.at)) })
	r.busiest = r.busiest[:min(topKeys, len(r.busiest))]
}

// inFlightLimits returns the concurrency limits that had a request.
func (t *tally) inFlightLimits() (rows []*row) {
	for _, r := range t.rows {
		if len(r.busiest) > 0 {
			rows = append(rows, r)
		}
	}
	return rows
}

func (t *tally) writePeaks(w io.Writer) {
	for _, r := range t.inFlightLimits() {
		fmt.Fprintf(w, "\n%s, capacity %d: most units in flight of a key, if no request had been denied\n", r.title(), r.policy.Limit.Capacity)
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprint(table, "PEAK\tAT\tKEY\n")
		for _, f := range r.busiest {
			fmt.Fprintf(table, "%d\t%s\t%s\n", f.peak, moment(f.at), descriptors.Printable(f.shown))
		}
		_ = table.Flush() // w is a strings.Builder in every call, and returns no error
		if note := r.outlivedNote(); note != "" {
			fmt.Fprintln(w, note)
		}
	}
}

func (r *row) outlivedNote() string {
	if r.outlived == 0 {
		return ""
	}
	return fmt.Sprintf("%d requests lasted longer than the ttl. Unless they renew their slots, others can take these after the ttl.", r.outlived)
}
