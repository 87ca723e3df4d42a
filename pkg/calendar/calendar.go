// Package calendar makes windows from the days, weeks, months and years of a time zone, daylight saving time
// included. It is pure: it reads no clock. Its time zones are those of package time; programs that run without time
// zone files import time/tzdata.
//
//	berlin, err := time.LoadLocation("Europe/Berlin")
//	days := calendar.Day.In(berlin) // for algorithms.Spec.Calendar
package calendar

import (
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Unit is the unit of time that a window spans. Other values than the constants below make its methods panic.
type Unit uint8

// The units. Weeks start on Monday, as in ISO 8601.
const (
	Day Unit = iota
	Week
	Month
	Year
)

// String returns "day", "week", "month" or "year".
func (u Unit) String() string { return [...]string{"day", "week", "month", "year"}[u] }

// In returns the calendar of u in zone; nil means UTC. Each call returns a new Calendar, which is safe for
// concurrent use. The nominal length (Usual) of a day is 24 hours, of a week 7 days, of a month 30 days and of
// a year 365 days. Longest is two hours longer than the longest unit. Since 1970, only clocks in Antarctica have
// been set back by more than that within one unit: at Casey by three hours, most recently in 2023.
func (u Unit) In(zone *time.Location) *algorithms.Calendar {
	const day = algorithms.Day
	if zone == nil {
		zone = time.UTC
	}
	return &algorithms.Calendar{
		Unit: u.String(), Zone: zone.String(),
		Usual:   [...]algorithms.Micros{day, 7 * day, 30 * day, 365 * day}[u],
		Longest: [...]algorithms.Micros{day, 7 * day, 31 * day, 366 * day}[u] + 2*3600*algorithms.Second,
		Edges:   &edges{unit: u, zone: zone},
	}
}

// edges computes the windows of a unit in a zone. A day starts when local clocks first show its date. So a
// clock that is set back over midnight does not start the day twice.
type edges struct {
	unit Unit
	zone *time.Location
	// last caches the windows around the most recent time; nearly all lookups are in these windows.
	last atomic.Pointer[row]
}

type row struct {
	first  int64 // the number of the window that starts at starts[0]
	starts [5]algorithms.Micros
}

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
	for e.edge(n+1) <= t { // if the clock was set back over an edge, the local date is in the window before
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

func (e *edges) Start(n int64) algorithms.Micros {
	if last := e.last.Load(); last != nil {
		if i := n - last.first; i >= 0 && i < int64(len(last.starts)) {
			return last.starts[i]
		}
	}
	return e.edge(n)
}

// secondsADay is the length of a day without a change of clocks.
const secondsADay = 24 * 60 * 60

// number returns the number of the window that contains a date.
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

// begins returns the local time at which window n begins, in seconds since 1970 local time.
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

// edge returns the first moment at which local clocks show the beginning of window n, or a later time if
// they skip it.
func (e *edges) edge(n int64) algorithms.Micros {
	shown := e.unit.begins(n)
	// Two days earlier, no local clock in the world shows the beginning of the window.
	for t := time.Unix(shown-2*secondsADay, 0).In(e.zone); ; {
		_, offset := t.Zone()
		_, end := t.ZoneBounds()
		if !end.IsZero() && !end.After(t) { // package time returns such an end on the last day of leap years beyond its tables
			end = t.Add(time.Hour)
		}
		at := max(t.Unix(), shown-int64(offset))
		if end.IsZero() || at < end.Unix() {
			return algorithms.Micros(at) * algorithms.Second
		}
		t = end
	}
}

// floorDiv returns a/b rounded down, for b > 0.
func floorDiv(a, b int64) int64 {
	if a < 0 {
		return -((-a-1)/b + 1)
	}
	return a / b
}
