package algorithms

// Calendar is windows that a calendar sets: they have numbers, and edges that no arithmetic gives.
// Limits are compared with ==, so equal ones share one Calendar.
type Calendar struct {
	// Unit and Zone say which it is: "day", "Europe/Berlin". Calendars with both equal have equal
	// windows.
	Unit, Zone string
	// Usual is the length that a window has for people who do not look at the calendar.
	Usual Micros
	// Longest is the most that a window lasts.
	Longest Micros
	Edges
}

// Edges are the moments at which windows start: a function, safe for use by several goroutines.
type Edges interface {
	// Window is the number of the window that t lies in; the one after it has the next number.
	Window(t Micros) int64
	// Start is the moment at which window n starts.
	Start(n int64) Micros
}

// After is the time from now until the n-th window start from now on; 0 for none.
func (c *Calendar) After(now Micros, n int64) Micros {
	if n <= 0 {
		return 0
	}
	return c.Start(c.Window(now)+n) - now
}

// same tells whether c and d, which may be nil, have equal windows.
func (c *Calendar) same(d *Calendar) bool {
	return c == d || c != nil && d != nil && c.Unit == d.Unit && c.Zone == d.Zone
}
