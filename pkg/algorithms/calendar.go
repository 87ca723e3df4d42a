package algorithms

// Calendar is a series of windows whose edges follow a calendar, such as days in a time zone. Limits are
// compared with ==, so limits with equal calendars must share one *Calendar.
type Calendar struct {
	// Unit and Zone identify the calendar, for example "day" and "Europe/Berlin". Calendars with equal Unit
	// and Zone have equal windows.
	Unit, Zone string
	// Usual is the nominal length of a window, such as 24 hours for a day.
	Usual Micros
	// Longest is an upper bound of the length of a window.
	Longest Micros
	// Edges computes the windows.
	Edges
}

// Edges computes the moments at which windows start. Implementations are pure and safe for concurrent use.
type Edges interface {
	// Window returns the number of the window that contains t. Consecutive windows have consecutive numbers.
	Window(t Micros) int64
	// Start returns the moment at which window n starts.
	Start(n int64) Micros
}

// After is for Stores. It returns the time from now until the n-th window start after now. It returns 0 if n <= 0,
// also if c is nil.
func (c *Calendar) After(now Micros, n int64) Micros {
	if n <= 0 {
		return 0
	}
	return c.Start(c.Window(now)+n) - now
}

func (c *Calendar) same(d *Calendar) bool {
	return c == d || c != nil && d != nil && c.Unit == d.Unit && c.Zone == d.Zone
}
