// Package calendar makes windows of the days, weeks, months and years that a place has: their edges
// are where its clocks say, daylight saving included. It reads no clock; what it knows of time zones
// is what package time knows (import time/tzdata to need no files).
package calendar

import (
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Unit is what a window is.
type Unit uint8

// The units. A week starts on Monday, as ISO 8601 has it.
const (
	Day Unit = iota
	Week
	Month
	Year
)

// Units are all of them.
var Units = [...]Unit{Day, Week, Month, Year}

// String is day, week, month or year.
func (u Unit) String() string { return [...]string{"day", "week", "month", "year"}[u] }

// In is the calendar of the place whose clocks zone tells. Usually a day has 24 hours, a month 30 days
// and a year 365. Since 1970 no clocks have been set back by more than two hours in one.
func (u Unit) In(zone *time.Location) *algorithms.Calendar {
	const day = algorithms.Day
	return &algorithms.Calendar{
		Unit: u.String(), Zone: zone.String(),
		Usual:   [...]algorithms.Micros{day, 7 * day, 30 * day, 365 * day}[u],
		Longest: [...]algorithms.Micros{day, 7 * day, 31 * day, 366 * day}[u] + 2*3600*algorithms.Second,
		Edges:   &edges{unit: u, zone: zone},
	}
}

// edges are those of a unit in a zone. A day starts the first time that the clocks show its date, so
// that clocks that go back over midnight start it once, too.
type edges struct {
	unit Unit
	zone *time.Location
	// last is the windows around the newest moment asked for: nearly all asks are for one of them.
	last atomic.Pointer[row]
}

// row is the starts of windows in turn, first being the number of the first.
type row struct {
	first  int64
	starts [5]algorithms.Micros
}

// Window implements algorithms.Edges.
func (e *edges) Window(t algorithms.Micros) int64 {
	last := e.last.Load()
	if last != nil {
		for i := len(last.starts) - 1; i > 0; i-- {
			if last.starts[i-1] <= t && t < last.starts[i] {
				return last.first + int64(i) - 1
			}
		}
	}
	n := e.unit.number(time.UnixMicro(int64(t)).In(e.zone).Date())
	for e.edge(n+1) <= t { // a clock that was set back over an edge has passed it all the same
		n++
	}
	if last == nil || t >= last.starts[len(last.starts)-1] {
		last = &row{first: n - 2}
		for i := range last.starts {
			last.starts[i] = e.edge(last.first + int64(i))
		}
		e.last.Store(last)
	}
	return n
}

// Start implements algorithms.Edges.
func (e *edges) Start(n int64) algorithms.Micros {
	if last := e.last.Load(); last != nil {
		if i := n - last.first; i >= 0 && i < int64(len(last.starts)) {
			return last.starts[i]
		}
	}
	return e.edge(n)
}

// secondsADay are those of a day whose clocks are not set.
const secondsADay = 24 * 60 * 60

// number is the number of the window that has a date.
func (u Unit) number(year int, month time.Month, day int) int64 {
	switch u {
	case Year:
		return int64(year) - 1970
	case Month:
		return (int64(year)-1970)*12 + int64(month) - 1
	case Week:
		return floorDiv(Day.number(year, month, day)+3, 7) // 1970 began on a Thursday
	case Day:
	}
	return floorDiv(time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Unix(), secondsADay)
}

// begins is what clocks show when window n begins, in seconds since they showed 1970.
func (u Unit) begins(n int64) int64 {
	switch u {
	case Year:
		return time.Date(1970+int(n), 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	case Month:
		return time.Date(1970, 1+time.Month(n), 1, 0, 0, 0, 0, time.UTC).Unix()
	case Week:
		return (7*n - 3) * secondsADay
	case Day:
	}
	return n * secondsADay
}

// edge is the first moment at which the clocks of the place show the beginning of window n, or, where
// they skip it, what comes after.
func (e *edges) edge(n int64) algorithms.Micros {
	shown := e.unit.begins(n)
	// Two days before, nobody's clocks have come so far.
	for t := time.Unix(shown-2*secondsADay, 0).In(e.zone); ; {
		_, offset := t.Zone()
		_, end := t.ZoneBounds()
		if !end.IsZero() && !end.After(t) { // so it is on the last day of a leap year that rules foretell
			end = t.Add(time.Hour)
		}
		at := max(t.Unix(), shown-int64(offset))
		if end.IsZero() || at < end.Unix() {
			return algorithms.Micros(at) * algorithms.Second
		}
		t = end
	}
}

// floorDiv is a/b rounded down, for b > 0.
func floorDiv(a, b int64) int64 {
	if a < 0 {
		return -((-a-1)/b + 1)
	}
	return a / b
}
