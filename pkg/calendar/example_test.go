package calendar_test

import (
	"fmt"
	"time"
	_ "time/tzdata" // for machines without time zone files

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/calendar"
)

// A limit of two in each month of Berlin, where February began an hour before it did in UTC.
func ExampleUnit_In() {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		fmt.Println(err)
		return
	}
	limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 2, Calendar: calendar.Month.In(berlin)})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	_, d := limit.Take(algorithms.State{}, algorithms.Micros(now.UnixMicro()), algorithms.Charge{Cost: 1})
	fmt.Println(d.Remaining, "left until", now.Add(time.Duration(d.ResetAfter)*time.Microsecond))
	// Output: 1 left until 2026-01-31 23:00:00 +0000 UTC
}
