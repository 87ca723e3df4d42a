// Package status describes the state of a sidecar: one line, its traffic, its store, and the sidecars that share the
// store. The page, the operators' API and the command line show the same Status.
package status

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
)

// Level is how urgent the state is.
type Level string

// The levels. Red means that the store fails, or that requests are not decided by their limits. Amber means that
// something needs attention: most requests are denied, or a new configuration was refused.
const (
	Green Level = "green"
	Amber Level = "amber"
	Red   Level = "red"
)

// MaxText is the largest number of characters of Line.Text.
const MaxText = 100

// Line is the state in one line.
type Line struct {
	Level Level `json:"level"`
	// Text has at most MaxText characters.
	Text string `json:"text"`
	// Cause, Remedy and Error are empty if Level is Green. Error is the last error of the network or of a file, or "".
	Cause  string `json:"cause,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	Error  string `json:"error,omitempty"`
	// Since is when the state began. It is zero if Level is Green.
	Since time.Time `json:"since,omitzero"`
}

// Traffic has requests per second, of the last few seconds.
type Traffic struct {
	Allowed float64 `json:"allowed"`
	Denied  float64 `json:"denied"`
	// WouldBeDenied are allowed by limits in shadow mode, and are also part of Allowed.
	WouldBeDenied float64 `json:"would_be_denied"`
	// Undecided are denied because a store did not decide, and are also part of Denied.
	Undecided float64 `json:"undecided"`
	// MostlyBy is the limit that denies most, or "".
	MostlyBy string `json:"mostly_by,omitempty"`
	// Median and P99 are the durations, in microseconds, within which 50 % and 99 % of the decisions of the last minute
	// were made. They are 0 if there were none.
	Median int64 `json:"p50_us"`
	P99    int64 `json:"p99_us"`
	// HalfSince is when more than half of the requests began to be denied; zero if it is not so.
	HalfSince time.Time `json:"-"`
}

// Status is the state of a sidecar.
type Status struct {
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Ready is whether the sidecar is ready. NotReady has the reasons, one a line.
	Ready    bool   `json:"ready"`
	NotReady string `json:"not_ready,omitempty"`
	State    Line   `json:"state"`
	// Config identifies the configuration in use. It is "" if there is none.
	Config     string                 `json:"config,omitempty"`
	Loaded     time.Time              `json:"loaded,omitzero"`
	Conditions []conditions.Condition `json:"conditions"`
	Traffic    Traffic                `json:"traffic"`
	Store      Store                  `json:"store"`
	Fleet      Fleet                  `json:"fleet"`
}

// Store describes where the buckets are.
type Store struct {
	// Kind is memory or redis.
	Kind string `json:"kind"`
	// Servers are the masters, as they last reported themselves.
	Servers []Server `json:"servers,omitempty"`
	// AsOf is when Servers was read. Problem is the reason why it could not be read since then, or "".
	AsOf    time.Time `json:"as_of,omitzero"`
	Problem string    `json:"problem,omitempty"`
	// Median and P99 are the durations of calls in the last minute, in microseconds. Timeout is --backend-timeout.
	Median  int64 `json:"p50_us"`
	P99     int64 `json:"p99_us"`
	Timeout int64 `json:"timeout_us,omitempty"`
	// Failures is the number of batches of requests that the store did not decide, since the start.
	Failures uint64 `json:"failures"`
	// Keys and MaxKeys are numbers of buckets in the memory of this sidecar.
	Keys    int `json:"keys"`
	MaxKeys int `json:"max_keys"`
}

// Server describes a master of Redis.
type Server struct {
	Address string `json:"address"`
	// Version has the name of the program, such as "Valkey 8.1.1". Role is master or slave.
	Version string `json:"version"`
	Role    string `json:"role"`
	// Memory and MaxMemory are in bytes. MaxMemory is 0 if there is no bound.
	Memory    int64  `json:"memory"`
	MaxMemory int64  `json:"max_memory"`
	Eviction  string `json:"eviction"`
}

// Report is what a sidecar stores in Redis for the other sidecars that share it.
type Report struct {
	Version string `json:"version"`
	// Link is the address of the sidecar's admin listener, as host:port, or "" if other machines cannot reach it.
	Link string `json:"link,omitempty"`
	// Config identifies the configuration. Loaded is when it was loaded.
	Config  string    `json:"config"`
	Loaded  time.Time `json:"loaded"`
	Started time.Time `json:"started"`
	// Allowed and Denied are the numbers of requests since the start. AllowedRate and DeniedRate are those of a second,
	// averaged over the last minute.
	Allowed     uint64  `json:"allowed"`
	Denied      uint64  `json:"denied"`
	AllowedRate float64 `json:"allowed_rate"`
	DeniedRate  float64 `json:"denied_rate"`
	// Load is the processor time that the sidecar uses, in processors.
	Load float64 `json:"load"`
	// Wrong is the name of the worst condition, or "" without conditions.
	Wrong string `json:"wrong,omitempty"`
}

// Sidecar is a sidecar with its Report. Age is the age of the Report, in seconds.
type Sidecar struct {
	ID  string  `json:"id"`
	Age float64 `json:"age_s"`
	Report
}

// Fleet lists the sidecars that share a Redis.
type Fleet struct {
	// Self is the ID of this sidecar. It is "" without Redis.
	Self     string    `json:"self,omitempty"`
	Sidecars []Sidecar `json:"sidecars"`
	// AsOf is when Sidecars was read. Problem is the reason why it could not be read since then, or "".
	AsOf    time.Time `json:"as_of,omitzero"`
	Problem string    `json:"problem,omitempty"`
}

// LineOf returns the state in one line. list has the conditions, the most severe first. notReady has the reasons for
// which the sidecar is not ready; "" means that it is ready.
func LineOf(list []conditions.Condition, notReady string, t *Traffic) Line {
	var worst Line
	for i := range list {
		if l := lineOf(&list[i], t); worst.Level == "" || urgency(l.Level) > urgency(worst.Level) {
			worst = l
		}
	}
	switch {
	case worst.Level == Red:
	case len(list) == 0 && notReady != "":
		first, _, _ := strings.Cut(notReady, "\n")
		worst = Line{Level: Red, Text: "Not ready: " + first, Cause: notReady, Remedy: "The log has the details."}
	case !t.HalfSince.IsZero():
		worst = Line{
			Level: Amber, Text: t.words(), Since: t.HalfSince,
			Cause:  "More than half of the requests exceed their limits. They are denied as configured.",
			Remedy: "The page and rlsidecar top name the keys that are denied most. Block the key or the tenant that floods, or raise a limit that is too low.",
		}
		if t.MostlyBy != "" {
			worst.Text += ", mostly by " + t.MostlyBy
		}
	case worst.Level == "":
		worst = Line{Level: Green, Text: "Healthy: " + t.words()}
	}
	if others := len(list) - 1; others > 0 {
		worst.Text = clip(worst.Text, MaxText-len(" (1 more problem)")) + fmt.Sprintf(" (%d more)", others)
	}
	worst.Text = clip(worst.Text, MaxText)
	return worst
}

func urgency(l Level) int { return slices.Index([]Level{Green, Amber, Red}, l) }

// lineOf describes a condition. A condition of Redis is Red if it is at least Degraded, because limits are then not
// applied as configured.
func lineOf(c *conditions.Condition, t *Traffic) Line {
	l := Line{Level: Amber, Text: cmp.Or(c.Headline, c.Summary), Cause: c.Summary, Remedy: c.Remedy, Error: c.Error, Since: c.Since}
	if c.Severity == conditions.Critical || c.Severity == conditions.Degraded && strings.HasPrefix(c.Name, "redis-") {
		l.Level = Red
	}
	if l.Level == Red && t.Allowed+t.Denied > 0 {
		of := Traffic{Allowed: t.Allowed + t.Denied - t.Undecided, Denied: t.Undecided}
		if with := l.Text + ": " + of.words() + " because of it"; utf8.RuneCountInString(with) <= MaxText {
			l.Text = with
		}
	}
	return l
}

// words states how many requests are denied.
func (t *Traffic) words() string {
	all := t.Allowed + t.Denied
	switch {
	case all == 0:
		return "no requests now"
	case t.Denied == 0:
		return "0 of " + number(all) + " requests/s denied"
	}
	return number(t.Denied) + " of " + number(all) + " requests/s denied"
}

// number writes a rate. Small rates have one decimal place, and large ones commas.
func number(x float64) string {
	if x < 9.95 {
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return Thousands(strconv.FormatFloat(x, 'f', 0, 64))
}

// Thousands separates digits by commas, in groups of three.
func Thousands(digits string) string {
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// clip returns at most n characters of text, the last of which is an ellipsis if some are missing.
func clip(text string, n int) string {
	runes := []rune(text)
	if len(runes) <= n {
		return text
	}
	return strings.TrimSpace(string(runes[:n-1])) + "…"
}
