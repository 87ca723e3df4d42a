package algorithms

import (
	"sync/atomic"
	"time"
)

// Calendar is windows whose edges a calendar and the clocks of a place set: its days, its weeks, its
// months or its years, however long daylight saving makes them. A day starts the first time that the
// clocks of the place show its date, so that also clocks that go back over midnight start it once.
//
// It is a function of its unit and zone, safe for use by several goroutines. Limits are compared
// with ==, so equal ones share one Calendar.
type Calendar struct {
	unit CalendarUnit
	zone *time.Location
	// last is the windows around the newest moment asked for: nearly all asks are for one of them.
	last atomic.Pointer[calendarSpan]
}

// CalendarUnit is what a window of a Calendar is.
type CalendarUnit uint8

// The units. A week starts on Monday, as ISO 8601 has it.
const (
	CalendarDay CalendarUnit = iota
	CalendarWeek
	CalendarMonth
	CalendarYear
)

// String is day, week, month or year.
func (u CalendarUnit) String() string {
	return [...]string{"day", "week", "month", "year"}[u]
}

// CalendarEdges is how many edges Around gives.
const CalendarEdges = 5

// calendarSpan is the starts of the windows from first on.
type calendarSpan struct {
	first int64
	edges [CalendarEdges]Micros
}

// NewCalendar makes a Calendar of the place whose clocks zone tells.
func NewCalendar(unit CalendarUnit, zone *time.Location) *Calendar {
	return &Calendar{unit: unit, zone: zone}
}

// String is the unit and the zone: "day Europe/Berlin". Calendars of equal String have equal windows.
func (c *Calendar) String() string { return c.unit.String() + " " + c.Zone() }

// Unit is what a window is.
func (c *Calendar) Unit() CalendarUnit { return c.unit }

// Zone is the name of the time zone.
func (c *Calendar) Zone() string { return c.zone.String() }

// same tells whether c and d, which may be nil, have equal windows.
func (c *Calendar) same(d *Calendar) bool {
	return c == d || c != nil && d != nil && c.unit == d.unit && c.Zone() == d.Zone()
}

// Nominal is the length that a window has for people who do not look at the calendar: a day has 24
// hours, a month 30 days, a year 365.
func (c *Calendar) Nominal() Micros {
	return [...]Micros{Day, 7 * Day, 30 * Day, 365 * Day}[c.unit]
}

// Longest is the most that a window lasts. Since 1970 no clocks have been set back by more than two
// hours in one.
func (c *Calendar) Longest() Micros {
	return [...]Micros{Day, 7 * Day, 31 * Day, 366 * Day}[c.unit] + 2*3600*Second
}

// Window is the number of the window that t lies in; the one after it has the next number.
func (c *Calendar) Window(t Micros) int64 {
	last := c.last.Load()
	if last != nil {
		for i := CalendarEdges - 1; i > 0; i-- {
			if last.edges[i-1] <= t && t < last.edges[i] {
				return last.first + int64(i) - 1
			}
		}
	}
	n := c.unit.number(time.UnixMicro(int64(t)).In(c.zone).Date())
	for c.edge(n+1) <= t { // a clock that was set back over an edge has passed it all the same
		n++
	}
	if last == nil || t >= last.edges[CalendarEdges-1] {
		last = &calendarSpan{first: n - CalendarEdges/2}
		for i := range last.edges {
			last.edges[i] = c.edge(last.first + int64(i))
		}
		c.last.Store(last)
	}
	return n
}

// Start is the moment at which window n starts.
func (c *Calendar) Start(n int64) Micros {
	if last := c.last.Load(); last != nil {
		if i := n - last.first; i >= 0 && i < CalendarEdges {
			return last.edges[i]
		}
	}
	return c.edge(n)
}

// Around is the starts of the windows around t, of which the middle one is that of t, and the number
// of the first.
func (c *Calendar) Around(t Micros) (first int64, edges [CalendarEdges]Micros) {
	first = c.Window(t) - CalendarEdges/2
	for i := range edges {
		edges[i] = c.Start(first + int64(i))
	}
	return first, edges
}

// After is the time from now until the n-th window start from now on; 0 for none.
func (c *Calendar) After(now Micros, n int64) Micros {
	if n <= 0 {
		return 0
	}
	return c.Start(c.Window(now)+n) - now
}

// number is the number of the window that has a date.
func (u CalendarUnit) number(year int, month time.Month, day int) int64 {
	switch u {
	case CalendarYear:
		return int64(year) - 1970
	case CalendarMonth:
		return (int64(year)-1970)*12 + int64(month) - 1
	case CalendarWeek:
		return floorDiv(CalendarDay.number(year, month, day)+3, 7) // 1970 began on a Thursday
	case CalendarDay:
	}
	return floorDiv(time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Unix(), 86400)
}

// begins is what clocks show when window n begins, in seconds since they showed 1970.
func (u CalendarUnit) begins(n int64) int64 {
	switch u {
	case CalendarYear:
		return time.Date(1970+int(n), 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	case CalendarMonth:
		return time.Date(1970, 1+time.Month(n), 1, 0, 0, 0, 0, time.UTC).Unix()
	case CalendarWeek:
		return (7*n - 3) * 86400
	case CalendarDay:
	}
	return n * 86400
}

// edge is the first moment at which the clocks of the place show the beginning of window n, or, where
// they skip it, what comes after.
func (c *Calendar) edge(n int64) Micros {
	shown := c.unit.begins(n)
	// Two days before nobody's clocks have come so far.
	for t := time.Unix(shown-2*86400, 0).In(c.zone); ; {
		_, offset := t.Zone()
		_, end := t.ZoneBounds()
		if !end.IsZero() && !end.After(t) { // so it is on the last day of a leap year that rules foretell
			end = t.Add(time.Hour)
		}
		at := max(t.Unix(), shown-int64(offset))
		if end.IsZero() || at < end.Unix() {
			return Micros(at) * Second
		}
		t = end
	}
}
