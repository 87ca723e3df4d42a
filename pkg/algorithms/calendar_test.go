package algorithms

import (
	"slices"
	"testing"
	"time"
	_ "time/tzdata" // the tests need no files of the machine's
)

// calendars are each unit in places whose clocks differ by hours, halves and quarters, are set twice a
// year, at midnight, by half an hour, or not at all.
var calendars = func() (all []*Calendar) {
	for _, zone := range []string{
		"UTC", "Europe/Berlin", "America/New_York", "America/Santiago", "Asia/Beirut", "Africa/Cairo",
		"Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Kiritimati", "America/St_Johns",
	} {
		for u := CalendarDay; u <= CalendarYear; u++ {
			all = append(all, calendarOf(u, zone))
		}
	}
	return all
}()

func calendarOf(u CalendarUnit, zone string) *Calendar {
	z, err := time.LoadLocation(zone)
	if err != nil {
		panic(err)
	}
	return NewCalendar(u, z)
}

// at reads a moment.
func at(tb testing.TB, text string) Micros {
	tb.Helper()
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		tb.Fatal(err)
	}
	return Micros(t.UnixMicro())
}

func TestCalendarEdges(t *testing.T) {
	for name, c := range map[string]struct {
		unit  CalendarUnit
		zone  string
		edges []string // in turn
	}{
		"UTC has plain days":       {CalendarDay, "UTC", []string{"2026-02-28T00:00:00Z", "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z"}},
		"a day of 23 hours":        {CalendarDay, "Europe/Berlin", []string{"2026-03-28T00:00:00+01:00", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"}},
		"a day of 25 hours":        {CalendarDay, "Europe/Berlin", []string{"2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"}},
		"half an hour":             {CalendarDay, "Australia/Lord_Howe", []string{"2026-04-05T00:00:00+11:00", "2026-04-06T00:00:00+10:30"}},
		"midnight is skipped":      {CalendarDay, "Asia/Beirut", []string{"2026-03-28T00:00:00+02:00", "2026-03-29T01:00:00+03:00", "2026-03-30T00:00:00+03:00"}},
		"back over midnight":       {CalendarDay, "America/Santiago", []string{"2026-04-04T00:00:00-03:00", "2026-04-05T00:00:00-04:00"}},
		"midnight comes twice":     {CalendarDay, "Atlantic/Azores", []string{"2026-10-25T00:00:00Z", "2026-10-26T00:00:00-01:00"}},
		"back, a minute after it":  {CalendarDay, "America/St_Johns", []string{"2006-10-28T00:00:00-02:30", "2006-10-29T00:00:00-02:30", "2006-10-30T00:00:00-03:30"}},
		"a date that never was":    {CalendarDay, "Pacific/Apia", []string{"2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"}},
		"weeks start on Monday":    {CalendarWeek, "America/New_York", []string{"2026-03-02T00:00:00-05:00", "2026-03-09T00:00:00-04:00", "2026-03-16T00:00:00-04:00"}},
		"a week over New Year":     {CalendarWeek, "UTC", []string{"2025-12-29T00:00:00Z", "2026-01-05T00:00:00Z"}},
		"months":                   {CalendarMonth, "Europe/Berlin", []string{"2026-02-01T00:00:00+01:00", "2026-03-01T00:00:00+01:00", "2026-04-01T00:00:00+02:00", "2026-05-01T00:00:00+02:00"}},
		"a February of 29 days":    {CalendarMonth, "UTC", []string{"2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"}},
		"2100 is no leap year":     {CalendarMonth, "UTC", []string{"2100-02-01T00:00:00Z", "2100-03-01T00:00:00Z"}},
		"years":                    {CalendarYear, "Asia/Kathmandu", []string{"2027-01-01T00:00:00+05:45", "2028-01-01T00:00:00+05:45", "2029-01-01T00:00:00+05:45"}},
		"long after the last rule": {CalendarDay, "Europe/Berlin", []string{"2111-03-29T00:00:00+01:00", "2111-03-30T00:00:00+02:00"}},
		"the end of a leap year":   {CalendarDay, "Europe/Berlin", []string{"2056-12-30T00:00:00+01:00", "2056-12-31T00:00:00+01:00", "2057-01-01T00:00:00+01:00"}},
		"before 1970":              {CalendarMonth, "America/New_York", []string{"1969-12-01T00:00:00-05:00", "1970-01-01T00:00:00-05:00"}},
	} {
		t.Run(name, func(t *testing.T) {
			calendar := calendarOf(c.unit, c.zone)
			first := calendar.Window(at(t, c.edges[0]))
			for i, text := range c.edges {
				edge := at(t, text)
				if got := calendar.Start(first + int64(i)); got != edge {
					t.Errorf("window %d starts at %s, want %s", i, time.UnixMicro(int64(got)).In(calendar.zone), text)
				}
				if got := calendar.Window(edge - 1); got >= first+int64(i) {
					t.Errorf("1 us before edge %d it is window %d", i, got-first)
				}
				if got := calendar.Window(edge); got < first+int64(i) {
					t.Errorf("at edge %d it is window %d", i, got-first)
				}
			}
		})
	}
}

// Every moment lies in the window whose edges are around it, whatever was asked before.
func TestCalendarWindowsMeet(t *testing.T) {
	for _, c := range calendars {
		fresh := NewCalendar(c.unit, c.zone)
		was := fresh.Window(at(t, "2026-01-01T00:00:00Z"))
		for now := at(t, "2025-12-20T00:00:00Z"); now < at(t, "2028-03-05T00:00:00Z"); now += 7*hour + 13*minute {
			n := fresh.Window(now)
			if n < was-50 || fresh.Start(n) > now || fresh.Start(n+1) <= now {
				t.Fatalf("%s: %s is in window %d, from %d to %d", c, time.UnixMicro(int64(now)), n, fresh.Start(n), fresh.Start(n+1))
			}
			first, edges := fresh.Around(now)
			if first != n-2 || edges[2] != fresh.edge(n) || edges[0] != fresh.edge(n-2) || edges[4] != fresh.edge(n+2) || !slices.IsSorted(edges[:]) {
				t.Fatalf("%s: around %d: %d %v", c, now, first, edges)
			}
			if longest := edges[3] - edges[2]; longest > c.Longest() {
				t.Fatalf("%s: a window of %d us", c, longest)
			}
		}
	}
}

// The spans told are those that the clocks of the place make.
func TestCalendarWindowOverDaylightSaving(t *testing.T) {
	s := Spec{Kind: FixedWindow, Rate: 10, Capacity: new(int64(25)), Calendar: calendarOf(CalendarDay, "Europe/Berlin")}
	l := mustCompile(t, s)
	var state State
	for i, is := range []struct {
		at      string
		cost    int64
		reserve bool
		want    Decision
	}{
		{"2026-03-28T12:00:00+01:00", 25, false, Decision{Allowed: true, ResetAfter: (12 + 23 + 24) * hour}},
		{"2026-03-28T12:00:00+01:00", 1, false, Decision{RetryAfter: 12 * hour, ResetAfter: (12 + 23 + 24) * hour}},
		{"2026-03-28T12:00:00+01:00", 11, false, Decision{RetryAfter: (12 + 23) * hour, ResetAfter: (12 + 23 + 24) * hour}},
		{"2026-03-28T23:59:59.999999+01:00", 1, false, Decision{RetryAfter: 1, ResetAfter: (23+24)*hour + 1}},
		{"2026-03-29T00:00:00+01:00", 10, false, Decision{Allowed: true, ResetAfter: (23 + 24 + 24) * hour}},
		{"2026-03-29T00:00:00+01:00", 25, true, Decision{Allowed: true, Value: -25, Wait: (23 + 24 + 24) * hour, ResetAfter: (23 + 4*24) * hour}},
		{"2026-04-03T00:00:00+02:00", 25, false, Decision{Allowed: true, ResetAfter: 3 * 24 * hour}},
	} {
		var got Decision
		state, got = l.Take(state, at(t, is.at), Ask{Cost: is.cost, Reserve: is.reserve})
		if got != is.want {
			t.Errorf("step %d:\n got %+v\nwant %+v", i, got, is.want)
		}
	}
}
