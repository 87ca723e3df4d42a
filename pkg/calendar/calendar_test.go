package calendar

import (
	"math/rand/v2"
	"testing"
	"time"
	_ "time/tzdata" // so that the tests need no time zone files of the machine

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

var units = [...]Unit{Day, Week, Month, Year}

func in(tb testing.TB, u Unit, zone string) *algorithms.Calendar {
	tb.Helper()
	z, err := time.LoadLocation(zone)
	if err != nil {
		tb.Fatal(err)
	}
	return u.In(z)
}

func at(tb testing.TB, text string) algorithms.Micros {
	tb.Helper()
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		tb.Fatal(err)
	}
	return algorithms.Micros(t.UnixMicro())
}

func TestCalendarEdges(t *testing.T) {
	for name, c := range map[string]struct {
		unit  Unit
		zone  string
		edges []string // in ascending order
	}{
		"UTC has plain days":       {Day, "UTC", []string{"2026-02-28T00:00:00Z", "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z"}},
		"a day of 23 hours":        {Day, "Europe/Berlin", []string{"2026-03-28T00:00:00+01:00", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"}},
		"a day of 25 hours":        {Day, "Europe/Berlin", []string{"2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"}},
		"half an hour":             {Day, "Australia/Lord_Howe", []string{"2026-04-05T00:00:00+11:00", "2026-04-06T00:00:00+10:30"}},
		"midnight is skipped":      {Day, "Asia/Beirut", []string{"2026-03-28T00:00:00+02:00", "2026-03-29T01:00:00+03:00", "2026-03-30T00:00:00+03:00"}},
		"back over midnight":       {Day, "America/Santiago", []string{"2026-04-04T00:00:00-03:00", "2026-04-05T00:00:00-04:00"}},
		"midnight comes twice":     {Day, "Atlantic/Azores", []string{"2026-10-25T00:00:00Z", "2026-10-26T00:00:00-01:00"}},
		"back, a minute after it":  {Day, "America/St_Johns", []string{"2006-10-28T00:00:00-02:30", "2006-10-29T00:00:00-02:30", "2006-10-30T00:00:00-03:30"}},
		"a date that never was":    {Day, "Pacific/Apia", []string{"2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"}},
		"weeks start on Monday":    {Week, "America/New_York", []string{"2026-03-02T00:00:00-05:00", "2026-03-09T00:00:00-04:00", "2026-03-16T00:00:00-04:00"}},
		"a week over New Year":     {Week, "UTC", []string{"2025-12-29T00:00:00Z", "2026-01-05T00:00:00Z"}},
		"months":                   {Month, "Europe/Berlin", []string{"2026-02-01T00:00:00+01:00", "2026-03-01T00:00:00+01:00", "2026-04-01T00:00:00+02:00", "2026-05-01T00:00:00+02:00"}},
		"a February of 29 days":    {Month, "UTC", []string{"2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"}},
		"2100 is no leap year":     {Month, "UTC", []string{"2100-02-01T00:00:00Z", "2100-03-01T00:00:00Z"}},
		"years":                    {Year, "Asia/Kathmandu", []string{"2027-01-01T00:00:00+05:45", "2028-01-01T00:00:00+05:45", "2029-01-01T00:00:00+05:45"}},
		"long after the last rule": {Day, "Europe/Berlin", []string{"2111-03-29T00:00:00+01:00", "2111-03-30T00:00:00+02:00"}},
		"the end of a leap year":   {Day, "Europe/Berlin", []string{"2056-12-30T00:00:00+01:00", "2056-12-31T00:00:00+01:00", "2057-01-01T00:00:00+01:00"}},
		"before 1970":              {Month, "America/New_York", []string{"1969-12-01T00:00:00-05:00", "1970-01-01T00:00:00-05:00"}},
	} {
		t.Run(name, func(t *testing.T) {
			calendar := in(t, c.unit, c.zone)
			first := calendar.Window(at(t, c.edges[0]))
			for i, text := range c.edges {
				edge := at(t, text)
				if got := calendar.Start(first + int64(i)); got != edge {
					t.Errorf("window %d starts at %s, want %s", i, time.UnixMicro(int64(got)).UTC(), text)
				}
				if got := calendar.Window(edge - 1); got >= first+int64(i) {
					t.Errorf("1 us before edge %d the window is %d; want an earlier one", i, got-first)
				}
				if got := calendar.Window(edge); got < first+int64(i) {
					t.Errorf("at edge %d the window is %d; want at least %d", i, got-first, i)
				}
			}
		})
	}
}

// zones differ from UTC by whole hours, half hours or quarters of an hour. Their clocks change twice a year,
// at midnight, by half an hour, or never.
var zones = []string{
	"UTC", "Europe/Berlin", "America/New_York", "America/Santiago", "Asia/Beirut", "Africa/Cairo",
	"Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Kiritimati", "America/St_Johns", "Africa/Casablanca",
}

// The reference implementation reads the local date every quarter of an hour. (From 2020 on, clocks change
// only at quarters.)
func TestAgreesWithBruteForce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, zone := range zones {
		for _, u := range units {
			c := in(t, u, zone)
			place, _ := time.LoadLocation(zone)
			for range 50 {
				now := at(t, "2020-01-01T00:00:00Z") + algorithms.Micros(rng.Int64N(int64(90*365*algorithms.Day)))
				n := c.Window(now)
				first, next := c.Start(n), c.Start(n+1)
				if first > now || now >= next || next-first > c.Longest {
					t.Fatalf("%s %s: %d is in window %d, from %d to %d; want a window around it, of at most %d", u, zone, now, n, first, next, c.Longest)
				}
				day := firstDay(u, time.UnixMicro(int64(first)).In(place))
				if want := firstShown(place, day); first != want {
					t.Fatalf("%s %s: the window of %s starts at %d, want %d", u, zone, day, first, want)
				}
				if got := c.After(now, 1); got != next-now {
					t.Fatalf("%s %s: after %d the next starts in %d, want %d", u, zone, now, got, next-now)
				}
			}
		}
	}
}

func firstDay(u Unit, t time.Time) time.Time {
	y, m, d := t.Date()
	switch u {
	case Year:
		m, d = 1, 1
	case Month:
		d = 1
	case Week:
		d -= (int(t.Weekday()) + 6) % 7
	case Day:
	}
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

func firstShown(place *time.Location, day time.Time) algorithms.Micros {
	t := day.Add(-15 * time.Hour)
	for {
		y, m, d := t.In(place).Date()
		if !time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Before(day) {
			return algorithms.Micros(t.UnixMicro())
		}
		t = t.Add(15 * time.Minute)
	}
}

func TestResultsDoNotDependOnEarlierCalls(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, u := range units {
		one := in(t, u, "Europe/Berlin")
		for range 2000 {
			now := at(t, "2026-01-01T00:00:00Z") + algorithms.Micros(rng.Int64N(int64(800*algorithms.Day)))
			other := in(t, u, "Europe/Berlin")
			if n := other.Window(now); one.Window(now) != n || one.Start(n+1) != other.Start(n+1) || one.Start(n-3) != other.Start(n-3) {
				t.Fatalf("%s: at %d: a used calendar has window %d, a new one %d; want equal windows and starts", u, now, one.Window(now), n)
			}
		}
	}
}

// In St. John's, clocks were set back by an hour a minute after midnight. The day that had begun must not
// end.
func TestADayDoesNotEndWhenClocksAreSetBack(t *testing.T) {
	began := in(t, Day, "America/St_Johns").Window(at(t, "2006-10-29T00:00:00-02:30"))
	for _, text := range []string{"2006-10-29T00:00:59-02:30", "2006-10-28T23:01:00-03:30", "2006-10-28T23:59:59-03:30", "2006-10-29T00:00:00-03:30"} {
		// A new calendar has an empty cache.
		if got := in(t, Day, "America/St_Johns").Window(at(t, text)); got != began {
			t.Errorf("%s is in day %d, want %d, which had begun", text, got, began)
		}
	}
}

func TestStartsAreTheSameFromTheCache(t *testing.T) {
	now := at(t, "2026-03-10T12:00:00Z")
	for _, u := range units {
		for later := range algorithms.Micros(4) {
			remembers := in(t, u, "Europe/Berlin")
			remembers.Window(now)
			n := remembers.Window(now + later*remembers.Usual)
			for i := int64(-8); i <= 8; i++ {
				if got, want := remembers.Start(n+i), in(t, u, "Europe/Berlin").Start(n+i); got != want {
					t.Errorf("%s: window %+d starts at %d, want %d", u, i, got, want)
				}
			}
		}
	}
}

func TestNoZoneMeansUTC(t *testing.T) {
	for _, u := range units {
		c, utc := u.In(nil), u.In(time.UTC)
		now := at(t, "2026-03-31T23:59:59.999999Z")
		if c.Zone != "UTC" || c.Window(now) != utc.Window(now) || c.Start(c.Window(now)+1) != utc.Start(utc.Window(now)+1) {
			t.Errorf("%s without a zone: got %q and window %d, want the windows of UTC", u, c.Zone, c.Window(now))
		}
	}
}

// A clock may show a time before 1970, for example on a machine without a battery west of Greenwich.
func TestWindowsBefore1970(t *testing.T) {
	for _, zone := range []string{"America/New_York", "UTC", "Asia/Tokyo"} {
		for _, u := range units {
			c := in(t, u, zone)
			for hours := range algorithms.Micros(24 * 40) {
				now := -hours * 3600 * algorithms.Second
				n := c.Window(now)
				if start, next := c.Start(n), c.Start(n+1); start > now || next <= now {
					t.Fatalf("%s in %s, %d hours before 1970: window %d is from %d to %d; want one around %d", u, zone, hours, n, start, next, now)
				}
			}
		}
	}
}
