package simulate

import "time"

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
