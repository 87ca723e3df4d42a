// Package history keeps the numbers of requests of the last fifteen minutes, in steps of ten seconds and in
// bounded memory. It reads existing counters, so it does no work for a request. The exception is Times.Add, which
// callers may call for a sample of the decisions.
package history

import (
	"hash/maphash"
	"math"
	"sync"
	"time"
)

const (
	// Step is the duration that one Point covers.
	Step = 10 * time.Second
	// Steps is the number of Points in a series. Together they cover fifteen minutes.
	Steps = 90
	// MaxSeries bounds the number of limits that have a series at the same time. A series takes 720 bytes, so
	// all take 6 MB. A limit has a series from its first request until fifteen minutes after its last.
	MaxSeries = 8192
	// recent is the number of steps that Rate covers: one minute.
	recent = 6
)

// Totals are counters since the program started.
type Totals struct{ Allowed, Denied uint64 }

// since returns the increase from start to t. If a counter is lower than in start, the counters were reset, and
// t is the increase.
func (t Totals) since(start Totals) Totals {
	if t.Allowed < start.Allowed || t.Denied < start.Denied {
		return t
	}
	return Totals{t.Allowed - start.Allowed, t.Denied - start.Denied}
}

// Point has the counts of one step.
type Point struct{ Allowed, Denied uint32 }

// Points are the points of the last fifteen minutes, oldest first.
type Points [Steps]Point

// Sum adds all points.
func (p *Points) Sum() (sum Totals) { return sumOf(p[:]) }

// Rate returns the numbers of requests per second, averaged over the last minute.
func (p *Points) Rate() (allowed, denied float64) {
	sum := sumOf(p[Steps-recent:])
	seconds := recent * Step.Seconds()
	return float64(sum.Allowed) / seconds, float64(sum.Denied) / seconds
}

func sumOf(points []Point) (sum Totals) {
	for _, p := range points {
		sum.Allowed += uint64(p.Allowed)
		sum.Denied += uint64(p.Denied)
	}
	return sum
}

// Key names a limit.
type Key struct{ Domain, Limit string }

// Recorder keeps the series of all limits. It is safe for concurrent use.
type Recorder struct {
	seed  maphash.Seed
	began time.Time // has a monotonic reading, so that setting the clock moves no point

	mu           sync.Mutex
	step         int64 // the step of the last sample, counted from began; mu guards this and the following fields
	all          *series
	limits       map[uint64]entry // by the hash of a Key, to store no names; only limits that have counted something
	seriesCount  int
	dropped      int // the number of limits that counted something in the last sample and found no room for a series
	sampleNumber uint32
}

type entry struct {
	last         Totals
	series       *series // nil without traffic for fifteen minutes, or without room
	sampleNumber uint32  // of the last sample that contained this limit
}

// series is a ring of points, indexed by step modulo Steps.
type series struct {
	points          [Steps]Point
	lastWrittenStep int64
	lastCountedStep int64
	totals          Totals
}

// New returns an empty Recorder that begins at the time now.
func New(now time.Time) *Recorder {
	return &Recorder{seed: maphash.MakeSeed(), began: now, all: &series{}, limits: map[uint64]entry{}}
}

// Sample adds the counts since the previous sample. requests is the total of all requests. limits calls visit
// once for each limit. Call Sample once in each Step.
func (r *Recorder) Sample(now time.Time, requests Totals, limits func(visit func(Key, Totals))) {
	r.mu.Lock()
	defer r.mu.Unlock()
	step := max(r.step, int64(now.Sub(r.began)/Step))
	r.step = step
	r.sampleNumber++
	r.dropped = 0
	r.all.add(step, requests.since(r.all.totals))
	r.all.totals = requests
	limits(func(key Key, totals Totals) { r.limit(step, key, totals) })
	for hash, e := range r.limits {
		if e.sampleNumber != r.sampleNumber { // the sample did not contain the limit, so it was removed
			r.remove(&e)
			delete(r.limits, hash)
		}
	}
}

// limit adds the counts of one limit to its series. The caller holds r.mu.
func (r *Recorder) limit(step int64, key Key, totals Totals) {
	if totals == (Totals{}) {
		return
	}
	hash := r.hash(key)
	e := r.limits[hash]
	moved := totals.since(e.last)
	e.last, e.sampleNumber = totals, r.sampleNumber
	switch {
	case e.series == nil && moved == (Totals{}):
	case e.series == nil && r.seriesCount == MaxSeries:
		r.dropped++
	case e.series == nil:
		e.series = &series{}
		r.seriesCount++
		e.series.add(step, moved)
	default:
		e.series.add(step, moved)
		if step-e.series.lastCountedStep >= Steps {
			r.remove(&e)
		}
	}
	r.limits[hash] = e
}

// remove removes the series of e. The caller holds r.mu.
func (r *Recorder) remove(e *entry) {
	if e.series != nil {
		e.series = nil
		r.seriesCount--
	}
}

func (r *Recorder) hash(key Key) uint64 { return maphash.Comparable(r.seed, key) }

// add adds counts to the point of a step. It first clears the points of the steps since s.lastWrittenStep, which had no sample.
func (s *series) add(step int64, counts Totals) {
	if step-s.lastWrittenStep >= Steps {
		s.points = [Steps]Point{}
	} else {
		for i := s.lastWrittenStep + 1; i <= step; i++ {
			s.points[i%Steps] = Point{}
		}
	}
	s.lastWrittenStep = step
	p := &s.points[step%Steps]
	p.Allowed, p.Denied = plus(p.Allowed, counts.Allowed), plus(p.Denied, counts.Denied)
	if counts != (Totals{}) {
		s.lastCountedStep = step
	}
}

func plus(a uint32, b uint64) uint32 { return uint32(min(uint64(a)+b, math.MaxUint32)) }

// read returns the points of the steps up to and including step. Steps without a sample are zero.
func (s *series) read(step int64) (p Points) {
	for i := range p {
		at := step - int64(Steps-1-i)
		if at >= 0 && at <= s.lastWrittenStep && at > s.lastWrittenStep-Steps {
			p[i] = s.points[at%Steps]
		}
	}
	return p
}

// All returns the series of all requests.
func (r *Recorder) All() Points {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all.read(r.step)
}

// Limit returns the series of one limit. All points are zero if the limit had no traffic in the last fifteen
// minutes.
func (r *Recorder) Limit(key Key) Points {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.limits[r.hash(key)].series; s != nil {
		return s.read(r.step)
	}
	return Points{}
}

// Recent calls visit for each limit that has a series. keys is the number of limits, and key returns the Key
// of limit i.
func (r *Recorder) Recent(keys int, key func(i int) Key, visit func(i int, p *Points)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seriesCount == 0 {
		return
	}
	for i := range keys {
		if s := r.limits[r.hash(key(i))].series; s != nil {
			p := s.read(r.step)
			visit(i, &p)
		}
	}
}

// Dropped returns the number of limits that had traffic in the last step but have no series, because
// MaxSeries other limits have one.
func (r *Recorder) Dropped() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropped
}
