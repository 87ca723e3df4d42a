package admin

import (
	"fmt"
	"strconv"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/status"
)

func at(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

func ago(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	if d := now.Sub(t); d >= time.Second {
		return span(d) + " ago"
	}
	return "just now"
}

// span formats a duration with its two largest units, such as hours and minutes.
func span(d time.Duration) string {
	units := []struct {
		name string
		is   time.Duration
	}{{"day", 24 * time.Hour}, {"hour", time.Hour}, {"minute", time.Minute}, {"second", time.Second}}
	if d > 0 && d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	for i, unit := range units {
		if d < unit.is && i < len(units)-1 {
			continue
		}
		text := plural(d/unit.is, unit.name)
		if i+1 < len(units) {
			if rest := d % unit.is / units[i+1].is; rest > 0 {
				text += " " + plural(rest, units[i+1].name)
			}
		}
		return text
	}
	return ""
}

// plural formats n with the singular or plural of thing, such as "2 keys".
func plural[N number](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return count(n) + " " + thing + "s"
}

type number interface{ ~int | ~int64 | ~uint64 }

// count formats n with commas. A negative n becomes 0.
func count[N number](n N) string { return status.Thousands(strconv.FormatUint(uint64(max(n, 0)), 10)) }

func rate(perSecond float64) string {
	switch {
	case perSecond == 0:
		return "0/s"
	case perSecond < 0.095:
		return fmt.Sprintf("%.1f/min", perSecond*60)
	case perSecond < 9.95:
		return fmt.Sprintf("%.1f/s", perSecond)
	default:
		return count(int64(perSecond+.5)) + "/s"
	}
}
