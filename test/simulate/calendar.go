package simulate

import (
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// The simulated servers and the judge compute the windows of calendars themselves, not with package calendar.

// edge is the zero of the processes' clocks. A day, a week and a month start in Berlin then, and the day before was an
// hour shorter. It is far in the future, so that no context of a process ends by the machine's clock.
var edge = time.Date(2148, 4, 1, 0, 0, 0, 0, berlin)

// clocksApart is so long that sidecars may have to send the windows again. They send those around their own time first.
const clocksApart = 72 * time.Hour

var berlin = func() *time.Location {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		panic(err)
	}
	return zone
}()

// dates has the windows of a unit in Berlin.
type dates string

func (unit dates) Window(at algorithms.Micros) int64 {
	year, month, day := time.UnixMicro(int64(at)).In(berlin).Date()
	n := time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Unix() / (24 * 60 * 60)
	switch unit {
	case "month":
		return int64(year-1970)*12 + int64(month) - 1
	case "week":
		return (n + 3) / 7 // 1970 began on a Thursday
	}
	return n
}

func (unit dates) Start(n int64) algorithms.Micros {
	month, day := 0, 0
	switch unit {
	case "month":
		month = int(n)
	case "week":
		day = 7*int(n) - 3
	default:
		day = int(n)
	}
	return algorithms.Micros(time.Date(1970, 1+time.Month(month), 1+day, 0, 0, 0, 0, berlin).UnixMicro())
}

var calendars = map[string]*algorithms.Calendar{}

// dated returns l with dates in place of its own calendar.
func dated(l *algorithms.Limit) *algorithms.Limit {
	if l.Calendar == nil {
		return l
	}
	c := calendars[l.Calendar.Unit]
	if c == nil {
		own := *l.Calendar
		own.Edges = dates(own.Unit)
		c = &own
		calendars[own.Unit] = c
	}
	own := *l
	own.Calendar = c
	return &own
}

// withDates returns the limit with the numbers of l that servers use.
func withDates(l *algorithms.Limit) *algorithms.Limit {
	if l.Calendar == nil {
		return l
	}
	return knownLimits[numbersOf(l)]
}
