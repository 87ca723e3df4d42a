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
	flying map[string]*Peak // the keys with units in flight
	ends   queue[landing]
	// endless counts the requests that took a slot and for which the input has no duration.
	endless int64
	early   int64 // requests that ended before their time, because more than maxOpen were in flight
}

// Peak is the most units that a key of a concurrency limit had in flight, since its first unit that is in flight.
type Peak struct {
	Key   string            `json:"key"`
	Units int64             `json:"units"`
	At    algorithms.Micros `json:"at_us"` // when there were Units

	limit  *Limit
	bucket string // the key of the bucket
	flying int64  // units that are in flight now
}

type landing struct {
	peak  *Peak
	units int64
}

// inFlight counts the units of r from now until the request ends.
func (t *tally) inFlight(now algorithms.Micros, c *limiter.Call, r *limiter.Result, of *Limit) {
	if r.Cost <= 0 || r.Cost > r.Policy.Limit.Capacity {
		return // takes nothing, whatever else is in flight
	}
	after := t.end.after
	if after > r.Policy.Limit.Period() {
		of.Outlived++
	}
	p := t.peaks.flying[string(r.Key)]
	if p == nil {
		p = &Peak{Key: string(t.show(nil, c, r)), limit: of, bucket: string(r.Key)}
		t.peaks.flying[p.bucket] = p
	}
	p.flying += r.Cost
	if p.flying > p.Units {
		p.Units, p.At = p.flying, now
	}
	t.peaks.ends.add(now+after, landing{p, r.Cost})
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
	if end.peak.flying -= end.units; end.peak.flying == 0 {
		delete(p.flying, end.peak.bucket)
		end.peak.limit.remember(end.peak)
	}
}

// remember keeps the topKeys keys with the highest peaks. A key that is dropped has a lower peak than those that are
// kept. If it has a higher one later, it is remembered again.
func (l *Limit) remember(p *Peak) {
	if i := slices.IndexFunc(l.InFlight, func(have *Peak) bool { return have.bucket == p.bucket }); i < 0 {
		l.InFlight = append(l.InFlight, p)
	} else if p.Units > l.InFlight[i].Units {
		l.InFlight[i] = p
	}
	slices.SortStableFunc(l.InFlight, func(x, y *Peak) int { return cmp.Or(cmp.Compare(y.Units, x.Units), cmp.Compare(x.At, y.At)) })
	l.InFlight = l.InFlight[:min(topKeys, len(l.InFlight))]
}

func (l *Limit) writePeaks(w io.Writer) {
	if len(l.InFlight) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s, capacity %d: most units in flight of a key, if no request had been denied\n", l.Title(), l.policy.Limit.Capacity)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "PEAK\tAT\tKEY\n")
	for _, p := range l.InFlight {
		fmt.Fprintf(table, "%d\t%s\t%s\n", p.Units, moment(p.At), descriptors.Printable(p.Key))
	}
	_ = table.Flush() // w is a strings.Builder in every call, and returns no error
	if l.Outlived > 0 {
		fmt.Fprintln(w, l.OutlivedNote())
	}
}

func (l *Limit) OutlivedNote() string {
	return fmt.Sprintf("%d requests lasted longer than the ttl. Unless they renew their slots, others can take these after the ttl.", l.Outlived)
}
