package algorithms

import (
	"sync"
	"testing"
	"time"
	_ "time/tzdata" // so that the tests need no time zone files of the machine
)

// civil computes the edges of days and months by brute force: it reads the local date every quarter of an hour.
type civil struct {
	unit string
	zone *time.Location
}

func (c civil) Window(t Micros) (n int64) {
	since := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	if now := c.date(t, 0); c.unit == "day" {
		return int64(now.Sub(since) / (24 * time.Hour))
	} else {
		return int64((now.Year()-since.Year())*12 + int(now.Month()))
	}
}

func (c civil) Start(n int64) Micros {
	if c.unit == "day" {
		return c.shows(time.Date(2020, 1, 1+int(n), 0, 0, 0, 0, time.UTC))
	}
	return c.shows(time.Date(2020, time.Month(n), 1, 0, 0, 0, 0, time.UTC))
}

// date returns the first day of the n-th window after the window of t.
func (c civil) date(t Micros, n int) time.Time {
	y, m, d := time.UnixMicro(int64(t)).In(c.zone).Date()
	if c.unit == "day" {
		return time.Date(y, m, d+n, 0, 0, 0, 0, time.UTC)
	}
	return time.Date(y, m+time.Month(n), 1, 0, 0, 0, 0, time.UTC)
}

// shows returns the first moment at which local clocks show date.
func (c civil) shows(date time.Time) Micros {
	type dateIn struct {
		zone *time.Location
		date time.Time
	}
	if at, known := shown.Load(dateIn{c.zone, date}); known {
		return at.(Micros)
	}
	at := date.Add(-15 * time.Hour)
	for {
		y, m, d := at.In(c.zone).Date()
		if !time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Before(date) {
			break
		}
		at = at.Add(15 * time.Minute)
	}
	shown.Store(dateIn{c.zone, date}, Micros(at.UnixMicro()))
	return Micros(at.UnixMicro())
}

var shown sync.Map

// calendars has days and months of zones that change their clocks at different hours, or never.
var calendars = func() (all []*Calendar) {
	for _, name := range []string{"UTC", "Europe/Berlin", "America/Santiago", "Australia/Lord_Howe"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			panic(err)
		}
		all = append(all,
			&Calendar{Unit: "day", Zone: name, Usual: Day, Longest: 26 * hour, Edges: civil{"day", zone}},
			&Calendar{Unit: "month", Zone: name, Usual: 30 * Day, Longest: 31*Day + 2*hour, Edges: civil{"month", zone}})
	}
	return all
}()

func at(tb testing.TB, text string) Micros {
	tb.Helper()
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		tb.Fatal(err)
	}
	return Micros(t.UnixMicro())
}

// Answers state when a window ends also for a limit that allows nothing.
func TestTheWindowOfALimitThatAllowsNothingEnds(t *testing.T) {
	l := mustCompile(t, Spec{Kind: FixedWindow, Period: Second, Start: new(Micros)})
	if got := l.WindowEnd(5*Second+1, 7); got != Second-1 {
		t.Errorf("got %d us; want %d", got, Second-1)
	}
}

// WindowEnd limits the life of leased units.
func TestCalendarEndsALease(t *testing.T) {
	l := mustCompile(t, Spec{Kind: FixedWindow, Rate: 10, Calendar: calendars[2]})
	if got := l.WindowEnd(at(t, "2026-03-29T23:59:59.9+02:00"), 7); got != 100*ms {
		t.Errorf("leased for %d us; want %v", got, 100*ms)
	}
}

// A state that another calendar cannot convert keeps its units, in windows as long as the longest of its own calendar.
func TestAStateOfAFormerCalendarBecomesFresh(t *testing.T) {
	day := mustCompile(t, Spec{Kind: FixedWindow, Rate: 10, Calendar: calendars[0]})
	month := mustCompile(t, Spec{Kind: FixedWindow, Rate: 5, Calendar: calendars[1]})
	s, _ := day.Take(State{}, t0, Charge{Cost: 10})
	s, _ = month.Take(s, t0, Charge{Cost: -1})
	if at := s.FreshAt(); at <= t0 || at > t0+2*Day {
		t.Errorf("fresh after %v; want within two days", at-t0)
	}
}
