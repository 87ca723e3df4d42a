// Package adjust changes the numbers of single limits without a deployment: an operator sets other numbers for one
// key, for all keys of a limit, or for all keys with one value (tenant=evil), for some time. The package has
// adjustments, their effect on a limit, the immutable Set of those in force with the last changes, the Keeper that
// shares it with other sidecars, and the Service that the admin API and the page use.
//
// An adjustment changes numbers as a new configuration does: consumed units stay consumed. So sidecars that disagree
// for a moment never admit more than the larger of the two limits.
package adjust

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// These bounds apply to adjustments. Traffic cannot reach them. They prevent a faulty script of an operator from
// filling memory, Redis or the log.
const (
	// MaxAdjustments bounds how many adjustments are in force at a time.
	MaxAdjustments = 10_000
	// MaxFor bounds the time until an adjustment expires. Longer changes belong in the configuration.
	MaxFor = Span(30 * algorithms.Day)

	maxAuthor = 128  // bytes
	maxReason = 512  // bytes
	maxKey    = 4096 // bytes of all values of a key together, and one more for each value
)

// Adjustment is a change of one limit's numbers, for the keys of its Target, until Expires.
type Adjustment struct {
	// ID identifies the adjustment: equal targets have equal IDs, so that a second adjustment of a target replaces
	// the first.
	ID     string
	Target Target
	Change Change
	// Algorithm is that of the limit when the adjustment was made. Numbers and factors apply only while the limit has
	// this algorithm. 0 means any algorithm.
	Algorithm algorithms.Kind
	// Expires and Created are times of the Keeper's clock. At Expires, the adjustment has no effect any more.
	Expires, Created algorithms.Micros
	Author, Reason   string
	// Only answers to operators have these fields: Words describe the effect. If there is no effect now, Ignored has the
	// reason instead. Left is the time until the adjustment expires.
	Words, Ignored string
	Left           time.Duration
}

// Target is what an adjustment changes.
type Target struct {
	Domain, Limit string
	// Key has the values that identify the bucket, as raw bytes. An empty value is a value.
	Key []string
	// AllKeys means every key of the limit that has no adjustment of its own. Key is then empty.
	AllKeys bool
	// Entry, if not "", is the key of an entry. The target is then every key of the limit whose value of that entry is
	// Value, and that has no adjustment of its own. It takes precedence over AllKeys.
	Entry, Value string
}

// Change has exactly one of: other numbers (Rate, Capacity, Period), a Factor, Unlimited, Block. nil or 0 keeps the
// configured number. However, a Rate without a Capacity also changes a capacity that equals the configured rate, except
// that of a leaky bucket.
type Change struct {
	Rate     *int64 `json:"rate,omitempty"`
	Capacity *int64 `json:"capacity,omitempty"`
	Period   Span   `json:"period,omitempty"`
	Factor   Factor `json:"factor,omitempty"`
	// Unlimited allows every request and charges nothing. Refunds are still made.
	Unlimited bool `json:"unlimited,omitempty"`
	// Block denies every request. Refunds and settlements are still made.
	Block bool `json:"block,omitempty"`
}

// Span is a span of time, with the text of configurations: 500ms, 30s, 1h30m, 2d.
type Span algorithms.Micros

// MarshalText returns the text that UnmarshalText parses.
func (s Span) MarshalText() ([]byte, error) {
	return []byte(duration.Format(algorithms.Micros(s))), nil
}

// UnmarshalText parses a span.
func (s *Span) UnmarshalText(text []byte) error {
	span, err := duration.Parse(string(text))
	if err != nil {
		return fmt.Errorf("%q %w", descriptors.Printable(string(text)), err)
	}
	*s = Span(span)
	return nil
}

// Factor multiplies the configured rates and capacity. It is in thousandths, so that every sidecar computes equal
// numbers. 0 means that there is no factor.
type Factor int64

const (
	one       Factor = 1000
	maxFactor        = 1_000_000 * one
)

func (f Factor) String() string { return strconv.FormatFloat(float64(f)/float64(one), 'f', -1, 64) }

// MarshalJSON writes a number.
func (f Factor) MarshalJSON() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalJSON reads a number.
func (f *Factor) UnmarshalJSON(text []byte) error { return f.UnmarshalText(text) }

// UnmarshalText parses a decimal number with at most three decimal places.
func (f *Factor) UnmarshalText(text []byte) error {
	x, err := strconv.ParseFloat(string(text), 64)
	n := math.Round(x * float64(one))
	if err != nil || n < 1 || n > float64(maxFactor) || n/float64(one) != x {
		return fmt.Errorf("factor %q must be a number from 0.001 to %d, with at most three decimal places", descriptors.Printable(string(text)), maxFactor/one)
	}
	*f = Factor(n)
	return nil
}

// ID identifies the target. It is the start of a digest, because keys can be long and hold any bytes.
func (t *Target) ID() string {
	h := sha256.New()
	for _, s := range append([]string{t.Domain, t.Limit}, t.Key...) {
		h.Write(binary.AppendUvarint(nil, uint64(len(s))))
		h.Write([]byte(s))
	}
	if t.AllKeys {
		h.Write([]byte("all keys"))
	}
	if t.Entry != "" {
		fmt.Fprintf(h, "match %q=%q", t.Entry, t.Value)
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

func (t *Target) String() string {
	return fmt.Sprintf("limit %s of domain %s, %s", descriptors.Printable(t.Limit), descriptors.Printable(t.Domain), t.KeyText())
}

// KeyText describes the key in plain words.
func (t *Target) KeyText() string {
	switch {
	case t.AllKeys:
		return "all keys"
	case t.Entry != "":
		return "all keys with " + descriptors.Format([]descriptors.Entry{{Key: t.Entry, Value: t.Value}})
	case len(t.Key) == 0:
		return "no key"
	}
	shown := make([]string, len(t.Key))
	for i, v := range t.Key {
		if shown[i] = descriptors.Printable(v); v == "" {
			shown[i] = `""`
		}
	}
	return "key " + strings.Join(shown, ",")
}

// End returns the time of the expiry as text.
func (a *Adjustment) End() string { return moment(a.Expires).Format("2006-01-02 15:04:05 UTC") }

// Check returns an error for mistakes in a that do not depend on the configuration.
func (a *Adjustment) Check() error {
	if err := cmp.Or(a.Target.check(), a.Change.check(), checkOrigin(a.Author, a.Reason)); err != nil {
		return err
	}
	switch lasts := a.Expires - a.Created; {
	case lasts <= 0:
		return errors.New("the adjustment would expire in the past; give a later time")
	case lasts > algorithms.Micros(MaxFor):
		return errors.New("an adjustment may last at most 30 days; for a longer time, change the configuration")
	}
	return nil
}

func (t *Target) check() error {
	switch {
	case t.Domain == "" || t.Limit == "":
		return errors.New("name the domain and the limit")
	case t.AllKeys && len(t.Key) > 0:
		return errors.New("an adjustment is for one key or for all keys; give one of the two")
	case t.Entry != "" && (t.AllKeys || len(t.Key) > 0):
		return errors.New("an adjustment of all keys with one value has neither a key nor all keys; give one of the three")
	case t.Entry == "" && t.Value != "":
		return errors.New("the value belongs to an entry; name the entry, such as tenant")
	}
	if bytes := len(t.Key) + len(strings.Join(t.Key, "")) + len(t.Entry) + len(t.Value); bytes > maxKey {
		return fmt.Errorf("a key may have at most %d bytes, with one more for each value, but this one has %d", maxKey, bytes)
	}
	return nil
}

func (c *Change) check() error {
	given := 0
	for _, is := range []bool{c.Rate != nil || c.Capacity != nil || c.Period != 0, c.Factor != 0, c.Unlimited, c.Block} {
		if is {
			given++
		}
	}
	switch {
	case given == 0:
		return errors.New("state what to change: rate, capacity and period, or factor, or unlimited, or block")
	case given > 1:
		return errors.New("numbers, factor, unlimited and block exclude each other; give one of them")
	case c.Factor < 0 || c.Factor > maxFactor:
		return fmt.Errorf("the factor must be from 0.001 to %d", maxFactor/one)
	case c.Rate != nil && *c.Rate < 1:
		return fmt.Errorf("rate must be at least 1, but is %d; to deny every request, use block", *c.Rate)
	case c.Capacity != nil && *c.Capacity < 0:
		return fmt.Errorf("capacity must not be negative, but is %d", *c.Capacity)
	case c.Period < 0:
		return errors.New("period must be longer than 0")
	}
	return nil
}

func (c *Change) String() string {
	var parts []string
	add := func(name string, n *int64) {
		if n != nil {
			parts = append(parts, fmt.Sprintf("%s %d", name, *n))
		}
	}
	add("rate", c.Rate)
	add("capacity", c.Capacity)
	if c.Period != 0 {
		parts = append(parts, "period "+duration.Format(algorithms.Micros(c.Period)))
	}
	switch {
	case c.Block:
		return "block"
	case c.Unlimited:
		return "unlimited"
	case c.Factor != 0:
		return "factor " + c.Factor.String()
	}
	return strings.Join(parts, ", ")
}

func checkOrigin(author, reason string) error {
	return cmp.Or(checkText("author", author, maxAuthor), checkText("reason", reason, maxReason))
}

func checkText(name, text string, maxBytes int) error {
	switch {
	case strings.TrimSpace(text) == "":
		return fmt.Errorf("%s is missing: the audit names who changed a limit, and why", name)
	case len(text) > maxBytes:
		return fmt.Errorf("%s may have at most %d bytes, but has %d", name, maxBytes, len(text))
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		return fmt.Errorf("%s must be plain text in UTF-8, on one line", name)
	}
	return nil
}

// Spec returns the numbers of l with the change c. The error is the reason why l cannot have them.
func (c *Change) Spec(l *algorithms.Limit) (algorithms.Spec, error) {
	if l.Rate == 0 {
		return algorithms.Spec{}, errors.New("the limit is configured to allow nothing: it has no numbers to change")
	}
	s := l.Spec()
	if l.Kind == algorithms.Concurrency && (c.Rate != nil || c.Period != 0) {
		return s, errors.New("a concurrency limit has no rate and no period; adjust capacity")
	}
	tied := s.Capacity != nil && *s.Capacity == s.Rate && l.Kind != algorithms.LeakyBucket // a capacity that equals the rate counts as not configured
	if c.Factor != 0 {
		s.Rate = c.Factor.multiply(s.Rate)
		if s.Capacity != nil {
			*s.Capacity = c.Factor.multiply(*s.Capacity)
		}
		if s.Minimum != nil {
			s.Minimum = &algorithms.Rate{Units: c.Factor.multiply(s.Minimum.Units), Period: s.Minimum.Period}
		}
		if s.Rate < 1 && l.Kind != algorithms.Concurrency {
			return s, fmt.Errorf("%s times a rate of %d is less than 1; to deny every request, use block", c.Factor, l.Rate)
		}
		return fitInitial(s, l), nil
	}
	if c.Period != 0 {
		if l.Calendar != nil {
			return s, fmt.Errorf("the period of this limit is a calendar %s, which cannot be adjusted; adjust rate or capacity instead", l.Calendar.Unit)
		}
		s.Period = algorithms.Micros(c.Period)
	}
	if c.Rate != nil {
		s.Rate = *c.Rate
		if tied {
			s.Capacity = nil
		}
	}
	if c.Capacity != nil {
		if l.Kind == algorithms.SlidingWindow || l.Kind == algorithms.SlidingLog {
			return s, fmt.Errorf("a %s has no capacity: it admits rate in each period", KindName(l.Kind))
		}
		s.Capacity = new(*c.Capacity)
	}
	return fitInitial(s, l), nil
}

// fitInitial makes the initial units of s fit its capacity, which the adjustment of l has changed. If those of l are
// below its capacity, the limit is a balance, and stays one: they stay below the capacity.
func fitInitial(s algorithms.Spec, l *algorithms.Limit) algorithms.Spec {
	if capacity := s.Rate; s.Initial != nil {
		if s.Capacity != nil {
			capacity = *s.Capacity
		}
		if l.Initial < l.Capacity {
			capacity = max(0, capacity-1)
		}
		*s.Initial = min(*s.Initial, capacity)
	}
	return s
}

func (f Factor) multiply(n int64) int64 { return Scale(n, int64(f), int64(one)) }

// Scale returns n*factor/divisor, rounded down. If the result is out of range, it is the largest int64. n and factor
// must be at least 0, and divisor at least 1.
func Scale(n, factor, divisor int64) int64 {
	hi, lo := bits.Mul64(uint64(n), uint64(factor))
	if hi >= uint64(divisor) {
		return math.MaxInt64
	}
	quotient, _ := bits.Div64(hi, lo, uint64(divisor))
	return int64(min(quotient, math.MaxInt64))
}
