package redis

import (
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/calendar"
)

func days(tb testing.TB, rate, capacity int64) *algorithms.Limit {
	tb.Helper()
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		tb.Fatal(err)
	}
	return compiled(tb, algorithms.Spec{
		Kind: algorithms.FixedWindow, Rate: rate, Capacity: &capacity,
		Calendar: calendar.Day.In(zone),
	})
}

// The arguments of the script contain some windows of the calendar. If the server's time is outside of them,
// the script returns that time only, and the call is sent again with other windows. So the answer follows the
// server's clock, whatever time this process assumes.
func TestCalendarUsesTheServersClock(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, ahead := range map[string]time.Duration{
		"right": 0, "a day ahead": 25 * time.Hour, "a day behind": -25 * time.Hour,
		"a month ahead": 31 * 24 * time.Hour, "a year behind": -365 * 24 * time.Hour, "1970": -time.Duration(time.Now().UnixNano()),
	} {
		t.Run(name, func(t *testing.T) {
			server.Do("FLUSHALL")
			n := nodeTo(t, server.Client())
			n.wall = func() algorithms.Micros { return algorithms.Micros(time.Now().Add(ahead).UnixMicro()) }
			l := days(t, 2, 2)
			for i, admitted := range []bool{true, true, false, false} {
				var d [1]backend.Decision
				n.Take(t.Context(), []backend.Charge{{Key: []byte("k"), Limit: l, Terms: algorithms.Charge{Cost: 1}}}, d[:])
				night := l.Calendar.After(d[0].At, 1)
				want := algorithms.Decision{Allowed: admitted, Remaining: max(0, 1-int64(i)), ResetAfter: night}
				if want.Value = want.Remaining; !admitted {
					want.RetryAfter = night
				}
				if d[0].Err != nil || d[0].Decision != want {
					t.Errorf("request %d: got %+v, want %+v", i, d[0], want)
				}
			}
		})
	}
}
