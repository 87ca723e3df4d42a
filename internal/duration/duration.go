// Package duration reads and writes durations in the notation of the configuration, such as 1h30m.
package duration

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// spanUnits maps each unit of a duration to its length. A day has 24 hours.
var spanUnits = map[string]algorithms.Micros{
	"us": 1, "µs": 1, "ms": 1000, "s": algorithms.Second, "m": 60 * algorithms.Second,
	"h": 3600 * algorithms.Second, "d": algorithms.Day, "w": 7 * algorithms.Day,
}

// Parse parses a duration in the configuration's notation: whole numbers with units, one after the other.
// Their sum must be above 0. An error is the end of a sentence that starts with the text, such as "is empty;
// write …".
func Parse(text string) (sum algorithms.Micros, err error) {
	mistake := func(what string) (algorithms.Micros, error) {
		return 0, fmt.Errorf("%s; write whole numbers with us, ms, s, m, h, d or w: 500ms, 30s, 1h30m", what)
	}
	if text == "" {
		return mistake("is empty")
	}
	for rest := text; rest != ""; {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		count, err := strconv.ParseInt(rest[:digits], 10, 64)
		letters := strings.IndexAny(rest[digits:], "0123456789")
		if letters < 0 {
			letters = len(rest) - digits
		}
		unit, known := spanUnits[rest[digits:digits+letters]]
		switch {
		case digits == 0:
			return mistake("is not a duration")
		case letters == 0:
			return mistake("has a number without a unit")
		case !known:
			return mistake(fmt.Sprintf("has the unknown unit %q", rest[digits:digits+letters]))
		case err != nil || count > int64(math.MaxInt64-sum)/int64(unit):
			return mistake("is too long")
		}
		sum += algorithms.Micros(count) * unit
		rest = rest[digits+letters:]
	}
	if sum <= 0 {
		return mistake("is not longer than 0")
	}
	return sum, nil
}

// Format formats a duration in the configuration's notation: 1d, 1h, 1m30s, 1s500ms, 200ms. If d is above
// algorithms.MaxTime and not a whole number of days, Format omits the fraction of a second.
func Format(d algorithms.Micros) string {
	if d >= algorithms.Day && d%algorithms.Day == 0 {
		return fmt.Sprintf("%dd", d/algorithms.Day)
	}
	sign := ""
	if d < 0 {
		sign, d = "-", -d
	}
	if d > algorithms.MaxTime {
		return sign + fmt.Sprintf("%ds", d/algorithms.Second)
	}
	for _, unit := range []algorithms.Micros{algorithms.Second, 1000} { // Parse accepts no fractions, so the text must be 1s500ms, not 1.5s
		if d > unit && d%unit != 0 {
			return sign + Format(d-d%unit) + Format(d%unit)
		}
	}
	text := (time.Duration(d) * time.Microsecond).String()
	for _, zero := range []struct{ end, cut string }{{"m0s", "0s"}, {"h0m", "0m"}} {
		if n := len(text) - len(zero.end); n >= 0 && text[n:] == zero.end {
			text = text[:len(text)-len(zero.cut)]
		}
	}
	return sign + text
}
