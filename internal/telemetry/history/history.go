// Package history keeps the numbers of requests of the last fifteen minutes and of the last day, in bounded memory. It
// reads existing counters, so it does no work for a request. The exception is Times.Add, which callers may call for a
// sample of the decisions.
package history

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"
)

// Range is a span of time with a number of steps.
type Range struct {
	Step  time.Duration
	Steps int
}

// Step is the duration of one step of Recent, and the time between two samples.
const Step = 5 * time.Second

// Recent and Day are the ranges that a Recorder keeps.
var (
	Recent = Range{Step, 180}
	Day    = Range{2 * time.Minute, 720}
)

const (
	// MaxSeries bounds the number of limits that have points. They are the busiest ones. The points of a limit take
	// 11 kB, so all take 2.2 MB.
	MaxSeries = 200
	// minute is the number of samples in a minute, after which the busiest limits are chosen again.
	minute = int64(time.Minute / Step)
	// maxMarks bounds the number of marks.
	maxMarks = 100
)

// Totals are counters since the program started. Shadowed counts requests that shadow mode allowed although a limit was
// reached. Allowed of a limit does not include them.
type Totals struct{ Allowed, Denied, Shadowed uint64 }

// Sum returns the number of all decisions of a limit.
func (t Totals) Sum() uint64 { return t.Allowed + t.Denied + t.Shadowed }

// since returns the increase from start to t. If a counter is lower than in start, the counters were reset, and
// t is the increase.
func (t Totals) since(start Totals) Totals {
	if t.Allowed < start.Allowed || t.Denied < start.Denied || t.Shadowed < start.Shadowed {
		return t
	}
	return Totals{t.Allowed - start.Allowed, t.Denied - start.Denied, t.Shadowed - start.Shadowed}
}

// Point has the counts of one step.
type Point struct{ Allowed, Denied, Shadowed uint32 }

func (p *Point) add(t Totals) {
	p.Allowed, p.Denied, p.Shadowed = plus(p.Allowed, t.Allowed), plus(p.Denied, t.Denied), plus(p.Shadowed, t.Shadowed)
}

func plus(a uint32, b uint64) uint32 { return uint32(min(uint64(a)+b, math.MaxUint32)) }

// Sum adds points.
func Sum(points []Point) (sum Totals) {
	for _, p := range points {
		sum.Allowed += uint64(p.Allowed)
		sum.Denied += uint64(p.Denied)
		sum.Shadowed += uint64(p.Shadowed)
	}
	return sum
}

// Rate has requests per second, averaged over the last minute.
type Rate struct{ Allowed, Denied, Shadowed float64 }

// Mark is an event on the time axis: a reload, or an adjustment.
type Mark struct {
	At   time.Time
	Text string
}

// Key identifies a limit.
type Key struct{ Domain, Limit string }

// Recorder keeps the points of all requests and of the busiest limits, and the rates of all limits that have decided a
// request. It is safe for concurrent use.
type Recorder struct {
	began time.Time

	mu      sync.Mutex
	step    int64          // the number of the last Step; guarded by mu
	sample  uint32         // counts the samples; guarded by mu
	all     entry          // guarded by mu
	limits  map[Key]*entry // guarded by mu
	kept    int            // the number of limits that have a series; guarded by mu
	dropped int            // the number of limits that had requests in the last minute, but have no series; guarded by mu
	marks   []Mark         // oldest first; guarded by mu
}

// entry has the rate of a limit, and its points if it is among the busiest.
type entry struct {
	last   Totals
	sample uint32 // the last sample that contained this limit
	minute ring
	series *series
}

type series struct{ recent, day ring }

// ring has the points of a Range, indexed by the number of the step modulo their number.
type ring struct {
	of     Range
	points []Point
	last   int64 // the last step that was written
}

// step returns the number of the step that contains step n of length Step.
func (r Range) step(n int64) int64 { return n / int64(r.Step/Step) }

func newEntry() *entry      { return &entry{minute: newRing(Range{Step, int(minute)})} }
func newSeries() *series    { return &series{newRing(Recent), newRing(Day)} }
func newRing(of Range) ring { return ring{of: of, points: make([]Point, of.Steps)} }

// New returns an empty Recorder that begins at the time now.
func New(now time.Time) *Recorder {
	r := &Recorder{began: now, limits: map[Key]*entry{}, all: *newEntry()}
	r.all.series = newSeries()
	return r
}

// Sample adds the counts since the previous sample. requests is the total of all requests. limits calls visit
// once for each limit. Call Sample once in each Step.
func (r *Recorder) Sample(now time.Time, requests Totals, limits func(visit func(Key, Totals))) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.step = max(r.step, int64(now.Sub(r.began)/Step))
	r.sample++
	r.all.add(r.step, requests)
	limits(r.addLimit)
	for key, e := range r.limits {
		if e.sample != r.sample { // the sample did not contain the limit, so it was removed
			delete(r.limits, key)
			if e.series != nil {
				r.kept--
			}
		}
	}
	if int64(r.sample)%minute == 0 {
		r.choose()
	}
}

// addLimit adds the counts of one limit. The caller holds r.mu.
func (r *Recorder) addLimit(key Key, totals Totals) {
	if totals == (Totals{}) {
		return
	}
	e := r.limits[key]
	if e == nil {
		e = newEntry()
		r.limits[key] = e
	}
	e.sample = r.sample
	if e.series == nil && r.kept < MaxSeries && totals != e.last {
		e.series = newSeries()
		r.kept++
	}
	e.add(r.step, totals)
}

func (e *entry) add(step int64, totals Totals) {
	moved := totals.since(e.last)
	e.last = totals
	e.minute.add(step, moved)
	if e.series != nil {
		e.series.recent.add(step, moved)
		e.series.day.add(step, moved)
	}
}

// choose gives points to the limits that are busiest now, and takes them from limits that are less busy, or that had no
// request for a day. The caller holds r.mu.
func (r *Recorder) choose() {
	type candidate struct {
		*entry
		sum  uint64
		none int // 1 if it has no points, so that others are preferred
	}
	var list []candidate
	for _, e := range r.limits {
		c := candidate{e, Sum(e.minute.read(r.step)).Sum(), 0}
		if e.series != nil && Sum(e.series.day.read(r.step)) == (Totals{}) {
			e.series = nil
		}
		if e.series == nil {
			c.none = 1
		}
		if c.sum > 0 || e.series != nil {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b candidate) int { return cmp.Or(cmp.Compare(b.sum, a.sum), a.none-b.none) })
	r.kept, r.dropped = min(len(list), MaxSeries), 0
	for i, c := range list {
		switch {
		case i < MaxSeries && c.series == nil:
			c.series = newSeries()
		case i >= MaxSeries:
			c.series = nil
			if c.sum > 0 {
				r.dropped++
			}
		}
	}
}

// add adds counts to the point of step n of length Step. It first clears the points of the steps since g.last, which had
// no sample.
func (g *ring) add(n int64, counts Totals) {
	step, size := g.of.step(n), int64(len(g.points))
	for i := max(g.last, step-size) + 1; i <= step; i++ {
		g.points[i%size] = Point{}
	}
	g.last = max(g.last, step)
	g.points[step%size].add(counts)
}

// read returns the points up to and including step n of length Step, the oldest first. Steps without a sample are zero.
func (g *ring) read(n int64) []Point {
	step, size := g.of.step(n), int64(len(g.points))
	p := make([]Point, size)
	for i := range p {
		at := step - size + 1 + int64(i)
		if at >= 0 && at <= g.last && at > g.last-size {
			p[i] = g.points[at%size]
		}
	}
	return p
}

// Points returns the points of a limit, or of all requests if key names none, in a range, which is Recent or Day, the
// oldest first. They are nil if the limit is not among the busiest. end is the end of the last point.
func (r *Recorder) Points(key Key, of Range) (end time.Time, points []Point) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := &r.all
	if key.Limit != "" {
		e = r.limits[key]
	}
	end = r.began.Add(time.Duration(of.step(r.step)+1) * of.Step)
	switch {
	case e == nil || e.series == nil:
		return end, nil
	case of == Day:
		return end, e.series.day.read(r.step)
	default:
		return end, e.series.recent.read(r.step)
	}
}

func (r *Recorder) rate(e *entry) Rate {
	t, seconds := Sum(e.minute.read(r.step)), time.Minute.Seconds()
	return Rate{float64(t.Allowed) / seconds, float64(t.Denied) / seconds, float64(t.Shadowed) / seconds}
}

// Rate returns the rate of all requests.
func (r *Recorder) Rate() Rate {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rate(&r.all)
}

// Rates calls visit with the rate of each of n limits that has decided a request. key returns the Key of limit i.
func (r *Recorder) Rates(n int, key func(i int) Key, visit func(i int, rate Rate)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range n {
		if e := r.limits[key(i)]; e != nil {
			visit(i, r.rate(e))
		}
	}
}

// Dropped returns the number of limits that had requests in the last minute but have no points, because MaxSeries other
// limits are busier.
func (r *Recorder) Dropped() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropped
}

// Mark adds an event at the time at.
func (r *Recorder) Mark(at time.Time, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.marks = append(r.marks, Mark{at, text})
	r.marks = r.marks[max(0, len(r.marks)-maxMarks):]
}

// Marks returns the events, the oldest first.
func (r *Recorder) Marks() []Mark {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.marks)
}
