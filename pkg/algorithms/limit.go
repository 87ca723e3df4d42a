package algorithms

import (
	"fmt"
	"math/bits"
	"strings"
)

// Spec describes a limit as it is configured. Compile checks it and returns a Limit. A Concurrency limit has only a
// Capacity, a Period, which is the ttl of its slots, and possibly Overdraw.
type Spec struct {
	Kind Kind
	// Rate is the number of units per Period. A token bucket gains Rate units in each Period, a fixed window
	// is granted them, a sliding window or log admits them, and a leaky bucket drains them. A limit with a Rate
	// of 0 allows only costs of 0 and refunds.
	Rate   int64
	Period Micros
	// Capacity is the most units that a token bucket or a fixed window can hold; nil means Rate. For a leaky
	// bucket it is the number of places in the queue; nil means none.
	Capacity *int64
	// Initial is the number of units in a new token bucket or fixed window; nil means Capacity.
	Initial *int64
	// MaxReserved is how many units below zero reservations and Overdraw may take a bucket. nil means the
	// largest number that can be computed exactly.
	MaxReserved *int64
	// Start is any moment at which a fixed window starts. If it is nil, the hash of each key (Charge.Hash)
	// determines when the windows of that key start.
	Start *Micros
	// Calendar, if not nil, determines when fixed windows start, in place of Period and Start.
	Calendar *Calendar
	// Overdraw charges the cost of every request, below zero if necessary. A request is denied if its cost was
	// not available.
	Overdraw bool
	// TakesDenied is for limits from files of envoyproxy/ratelimit. A fixed window then counts denied
	// requests, too. Their count ends with the window.
	TakesDenied bool
	// PerRequest is for limits that come with requests (overrides of Envoy). The exact consumption of a fixed
	// window is then kept when the next request has other numbers. The next window starts at capacity.
	PerRequest bool
	// Penalty, if not nil, blocks a bucket after a number of denials.
	Penalty *Penalty
	// Minimum, if not nil, adds a guaranteed rate to a token bucket. The token bucket then serves as a bank
	// for bursts. Capacity and Initial are those of the bank.
	Minimum *Rate
	// Settles is for requests whose costs are known only afterwards. Each request consumes an estimate, and
	// Charge.Settle corrects it. Token buckets without Minimum support Settles, and so do fixed windows without
	// rollover.
	Settles bool
	// MaxDebt is how many units below zero settlements may take a bucket of a limit with Settles. nil means
	// Capacity, or less if the numbers would not stay exact.
	MaxDebt *int64
	// OpenFor, if not 0, makes the bucket of a limit with Settles store its open reservations, for requests that settle
	// without an id (Charge.Open). A reservation that is not settled is refunded between OpenFor and a sixteenth more
	// after it was made. 0 means that nothing is refunded.
	OpenFor Micros
}

// Rate is a number of units per period.
type Rate struct {
	Units  int64
	Period Micros
}

// Limit is a compiled limit: its numbers, checked and scaled. Only Compile and Split make Limits. Limits are
// immutable, safe for concurrent use, and can be compared with ==. Fields without a comment have the meaning
// that they have in Spec. Method Spec returns a Spec that compiles to the Limit.
type Limit struct {
	Kind        Kind
	Overdraw    bool
	TakesDenied bool
	PerRequest  bool

	Rate        int64 // units in each period; for a concurrency limit, Capacity
	Capacity    int64 // units; for a guaranteed bucket, both parts; for a leaky bucket, queue + 1
	Initial     int64 // units
	MaxReserved int64 // units
	// Calendar is nil if Period and Start determine when windows start.
	Calendar *Calendar
	Penalty  Penalty

	Settles bool  // requests consume estimates, which are settled later
	MaxDebt int64 // units: how far below zero settlements go
	OpenFor Micros

	numbers
}

// numbers are the numbers of a Limit, scaled so that decisions compute exactly.
type numbers struct {
	tick         Micros // the unit of time: 1 us, or 1,000 us where microseconds do not fit
	period       int64  // ticks; with a Calendar, its Usual length
	length       Micros // of a step (see steps.go); 0 with a Calendar
	reach        int64  // units; the largest debt that can be represented exactly
	phase        int64  // fixed window: ticks, 0 <= phase < period; 0 with a Calendar
	phaseFromKey bool   // fixed window: the phase is the hash of the key modulo period

	// The level of a bucket is in 1/q unit. In these, p is the inflow of each step, and v the level of a full bucket (see
	// level.go). If each window starts at capacity, p is larger than any level.
	p, q, v int64
	// p1 and v1 are p and v of the guaranteed part of a guaranteed bucket. p, v and Capacity-v1/q then
	// describe the bank.
	p1, v1 int64
}

// SpecError is one mistake in a Spec.
type SpecError struct {
	Field   string // the field of the configuration: "rate", "period", "capacity", …
	Problem string // for example "must be at least 1, but is -5"
	largest int64  // if the value is too large: the largest value that would fit
}

// Error returns the field and the problem.
func (e SpecError) Error() string { return e.Field + " " + e.Problem }

// SpecErrors lists all mistakes in a Spec.
type SpecErrors []SpecError

// Error joins the mistakes with semicolons.
func (e SpecErrors) Error() string {
	s := make([]string, len(e))
	for i, x := range e {
		s[i] = x.Error()
	}
	return strings.Join(s, "; ")
}

// ticks are the units of time that a Limit can use, the finest first.
var ticks = [...]Micros{1, 1000}

// Compile checks and scales s. Its errors are of type SpecErrors. They list every mistake, except that numbers
// too large to be computed exactly are reported one at a time, and only if there is no other mistake.
func Compile(s Spec) (Limit, error) {
	fine, err := compile(s, ticks[0])
	if err == nil {
		return fine, nil
	}
	coarse, again := compile(s, ticks[1])
	if again == nil {
		return coarse, nil
	}
	if again[0].largest > err[0].largest {
		err = again
	}
	return Limit{}, err
}

func (s Spec) fits(tick Micros) bool {
	if s.Calendar != nil {
		return tick == 1
	}
	return s.Period%tick == 0 && (s.Minimum == nil || s.Minimum.Period%tick == 0)
}

func compile(s Spec, tick Micros) (Limit, SpecErrors) {
	if errs := check(s); len(errs) > 0 {
		return Limit{}, errs
	}
	if s.Kind == Concurrency {
		return Limit{Kind: Concurrency, Overdraw: s.Overdraw, Rate: *s.Capacity, Capacity: *s.Capacity, Initial: *s.Capacity, numbers: numbers{tick: 1, period: int64(s.Period)}}, nil
	}
	if s.Calendar != nil {
		s.Period = s.Calendar.Usual
	}
	l := Limit{Calendar: s.Calendar, Kind: s.Kind, Overdraw: s.Overdraw, TakesDenied: s.TakesDenied, PerRequest: s.PerRequest, Rate: s.Rate, Settles: s.Settles}
	if s.Kind == TokenBucket && s.Minimum != nil {
		l.Kind = Guaranteed
	}
	if s.Penalty != nil {
		l.Penalty = *s.Penalty
	}
	l.Capacity = valueOr(s.Capacity, s.Rate)
	if s.Kind == LeakyBucket {
		l.Capacity = valueOr(s.Capacity, 0) + 1
	}
	l.Initial = valueOr(s.Initial, l.Capacity)
	if s.Rate == 0 {
		l.tick, l.period = 1, int64(s.Period)
		return l, nil
	}
	l.tick = tick
	if !s.fits(tick) {
		return Limit{}, SpecErrors{{"period", "is not a whole number of milliseconds, and cannot be computed exactly otherwise", 0}}
	}
	fit, field, unit := l.scale(s)
	if fit {
		return l, nil
	}
	what := "is too large to compute exactly"
	if s.MaxReserved != nil && field == "capacity" && *s.MaxReserved > l.Capacity && unit+*s.MaxReserved >= l.Capacity {
		field, unit = "max_reserved", unit+*s.MaxReserved-l.Capacity
		what = fmt.Sprintf("is too large to compute exactly with this rate, period and capacity; the largest that fits is %d", unit)
	} else if unit > 0 {
		what = fmt.Sprintf("is too large to compute exactly with this rate and period; the largest that fits is %d", unit)
	} else if field == "capacity" {
		field, what = "period", "cannot be computed exactly with this rate; use a shorter one"
	}
	return Limit{}, SpecErrors{{field, what, unit}}
}

// check finds the mistakes in s that do not depend on the scale.
func check(s Spec) (errs SpecErrors) {
	add := func(field, format string, args ...any) {
		errs = append(errs, SpecError{Field: field, Problem: fmt.Sprintf(format, args...)})
	}
	if s.Kind == Concurrency {
		s.checkSlots(add)
		return errs
	}
	s.checkNumbers(add)
	s.checkModes(add)
	s.checkParts(add)
	return errs
}

type addError = func(field, format string, args ...any)

func (s Spec) checkNumbers(add addError) {
	switch {
	case s.Kind == Guaranteed:
		add("algorithm", "must not be guaranteed: use token_bucket, and set the guaranteed rate")
	case s.Kind < TokenBucket || s.Kind > LeakyBucket:
		add("algorithm", "is missing")
	}
	bound := func(field string, n *int64) {
		if n != nil && *n > maxExact {
			add(field, "must be at most %d, the largest number computed exactly, but is %d", int64(maxExact), *n)
		}
	}
	bound("rate", &s.Rate)
	bound("capacity", s.Capacity)
	bound("max_reserved", s.MaxReserved)
	bound("max_debt", s.MaxDebt)
	if s.Rate < 0 {
		add("rate", "must be at least 1, but is %d", s.Rate)
	}
	switch {
	case s.Calendar != nil && s.Kind != FixedWindow:
		add("time_zone", "belongs to algorithm fixed_window, not to %s", s.Kind)
	case s.Calendar != nil && s.Start != nil:
		add("start", "cannot be combined with time_zone: the calendar determines when windows start")
	case s.Calendar == nil && s.Period <= 0:
		add("period", "must be longer than 0")
	}
	tokens := s.Kind == TokenBucket || s.Kind == FixedWindow
	capacity := valueOr(s.Capacity, s.Rate)
	if s.Capacity != nil && capacity < 0 {
		add("capacity", "must not be negative, but is %d", capacity)
	}
	if s.Capacity != nil && !tokens && s.Kind != LeakyBucket {
		add("capacity", "does not belong to algorithm %s, which admits rate in each period", s.Kind)
	}
	switch {
	case s.Initial == nil:
	case !tokens:
		add("initial", "does not belong to algorithm %s", s.Kind)
	case *s.Initial < 0 || *s.Initial > capacity:
		add("initial", "must be between 0 and capacity (%d), but is %d", capacity, *s.Initial)
	}
	switch {
	case s.MaxReserved == nil:
	case !tokens || s.Minimum != nil:
		add("max_reserved", "does not belong to %s, which cannot reserve", s.title())
	case *s.MaxReserved < 0:
		add("max_reserved", "must not be negative, but is %d", *s.MaxReserved)
	}
}

func (s Spec) checkModes(add addError) {
	tokens := s.Kind == TokenBucket || s.Kind == FixedWindow
	if s.Start != nil && s.Kind != FixedWindow {
		add("start", "belongs to algorithm fixed_window, not to %s", s.Kind)
	}
	if s.Overdraw && (!tokens || s.Minimum != nil) {
		add("overdraw", "does not belong to %s, which cannot go below zero", s.title())
	}
	if (s.TakesDenied || s.PerRequest) && s.Kind != FixedWindow {
		add("algorithm", "%s cannot count denied requests", s.Kind)
	}
	if s.Kind == SlidingLog && s.Rate > MaxLogRate {
		add("rate", "must be at most %d for sliding_log, which remembers every admitted unit, but is %d; use sliding_window", MaxLogRate, s.Rate)
	}
}

func (s Spec) checkParts(add addError) {
	if p := s.Penalty; p != nil {
		switch {
		case s.Overdraw:
			add("penalty", "cannot be combined with overdraw, which also charges denied requests")
		case p.After < 1 || p.After > MaxPenaltyAfter:
			add("penalty", "needs after, the denials that block, between 1 and %d, has %d", MaxPenaltyAfter, p.After)
		case p.For < 1:
			add("penalty", "needs for, how long the first block lasts, longer than 0")
		case p.Max < p.For || p.Max > MaxBlock:
			add("penalty", "needs max, how long the longest block lasts, of at least for and at most %d days", int64(MaxBlock/Day))
		}
	}
	s.checkSettling(add)
	if m := s.Minimum; m != nil {
		switch {
		case s.Kind == Guaranteed: // checkNumbers reports it
		case s.Kind != TokenBucket:
			add("guaranteed", "belongs to algorithm token_bucket, not to %s", s.Kind)
		case m.Units < 1:
			add("guaranteed", "needs a rate of at least 1, has %d", m.Units)
		case m.Units > maxExact:
			add("guaranteed", "needs a rate of at most %d", int64(maxExact))
		case m.Period <= 0:
			add("guaranteed", "needs a period longer than 0")
		}
	}
}

func (s Spec) checkSettling(add addError) {
	switch {
	case !s.Settles && s.MaxDebt != nil:
		add("max_debt", "belongs to limits that settle")
	case !s.Settles && s.OpenFor != 0:
		add("ttl", "belongs to limits that settle")
	case !s.Settles:
	case s.OpenFor != 0 && (s.OpenFor < MinOpenFor || s.OpenFor > MaxOpenFor):
		add("ttl", "must be between 1s and 1d")
	case s.OpenFor != 0 && s.Calendar != nil:
		add("time_zone", "cannot be combined with settle by bucket")
	case s.Kind != TokenBucket && s.Kind != FixedWindow || s.Minimum != nil:
		add("settle", "does not belong to %s; use token_bucket or fixed_window", s.title())
	case s.Kind == FixedWindow && s.Capacity != nil && *s.Capacity > s.Rate:
		add("settle", "cannot be combined with a fixed window that rolls over: capacity (%d) must be at most rate (%d)", *s.Capacity, s.Rate)
	case s.Overdraw:
		add("settle", "cannot be combined with overdraw: a settlement charges the units above the estimate")
	case s.TakesDenied || s.PerRequest:
		add("settle", "cannot be combined with limits that count denied requests")
	case s.Penalty != nil:
		add("settle", "cannot be combined with penalty")
	case s.MaxDebt != nil && *s.MaxDebt < 0:
		add("max_debt", "must not be negative, but is %d", *s.MaxDebt)
	}
}

func (s Spec) title() string {
	if s.Minimum != nil {
		return "a token bucket with a guaranteed minimum"
	}
	return "algorithm " + s.Kind.String()
}

// scale computes the scaled numbers of l for its tick. If a number would exceed the exact range, scale
// returns the field that is too large and the largest value that would fit, or 0 or less if none fits.
func (l *Limit) scale(s Spec) (fits bool, field string, largest int64) {
	l.period, l.length = int64(s.Period/l.tick), l.tick
	reserved, most := valueOr(s.MaxReserved, 0), int64(0) // most: the largest capacity + max_reserved that fits, in units
	switch l.Kind {
	case TokenBucket, LeakyBucket:
		g := gcd(l.Rate, l.period)
		l.p, l.q = l.Rate/g, l.period/g
		if l.p > maxExact {
			return false, "rate", maxExact
		}
		most = (maxExact - l.p) / l.q
		if l.Capacity > most-reserved {
			if l.Kind == LeakyBucket {
				return false, "capacity", most - 1
			}
			return false, "capacity", most - reserved
		}
		l.v = l.Capacity * l.q
	case Guaranteed:
		return l.scaleGuaranteed(s)
	case FixedWindow:
		if most = l.scaleWindow(s); most < 0 {
			return false, "capacity", 0
		}
		if l.Capacity > most-reserved {
			return false, "capacity", most - reserved
		}
	case SlidingWindow:
		if hi, lo := bits.Mul64(uint64(l.Rate)*3, uint64(l.period)); hi > 0 || lo > maxExact || l.Rate > maxExact {
			return false, "rate", maxExact / 3 / l.period
		}
	case SlidingLog:
		if l.tick != 1 || s.Period > MaxTime {
			return false, "period", int64(MaxTime)
		}
	}
	if l.CanReserve() {
		l.reach = most - l.Capacity
		l.MaxReserved = valueOr(s.MaxReserved, l.reach)
	}
	if l.OpenFor = s.OpenFor; l.Settles {
		if l.MaxDebt = valueOr(s.MaxDebt, min(l.Capacity, l.reach)); l.MaxDebt > l.reach {
			return false, "max_debt", l.reach
		}
	}
	return true, "", 0
}

// scaleWindow sets the phase and the other numbers of a fixed window. It returns the largest capacity + max_reserved that is computed
// exactly, in units, or a negative number if none is.
func (l *Limit) scaleWindow(s Spec) (most int64) {
	if l.phaseFromKey = s.Start == nil && s.Calendar == nil; s.Start != nil {
		start := floorDiv(int64(*s.Start), int64(l.tick))
		l.phase = start - floorDiv(start, l.period)*l.period
	}
	longest := l.period
	if l.length = s.Period; l.Calendar != nil {
		longest, l.length = int64(l.Calendar.Longest), 0
	}
	if l.p, l.q, l.v = l.Rate, 1, l.Capacity; l.clears() {
		l.p = maxExact
	}
	return mostOfWindows(l.Rate, longest)
}

// mostOfWindows returns the largest capacity + max_reserved of a fixed window whose times stay exact, or a
// negative number if none does. longest is the length of the longest window, in ticks. A decision at MaxTime
// can compute times that are 1 + ceil((capacity + max_reserved)/rate) windows later.
func mostOfWindows(rate, longest int64) int64 {
	windows, most := (maxExact-int64(MaxTime))/longest-1, maxExact-rate
	if windows <= most/rate {
		return windows * rate
	}
	return most
}

// scaleGuaranteed is scale for a guaranteed bucket. Both parts get the scale q = lcm(q1, q2).
func (l *Limit) scaleGuaranteed(s Spec) (fits bool, field string, largest int64) {
	period1 := int64(s.Minimum.Period / l.tick)
	g1, g2 := gcd(s.Minimum.Units, period1), gcd(l.Rate, l.period)
	q1, q2 := period1/g1, l.period/g2
	f1 := q2 / gcd(q1, q2) // q = q1*f1 = q2*f2
	f2 := q1 / gcd(q1, q2)
	q, ok := mulExact(q1, f1)
	p1, ok1 := mulExact(s.Minimum.Units/g1, f1)
	p2, ok2 := mulExact(l.Rate/g2, f2)
	if !ok || !ok1 || !ok2 || p1+p2 > maxExact {
		return false, "guaranteed", 0
	}
	most := (maxExact - p1 - p2) / q // units of both buckets together
	if s.Minimum.Units > most {
		return false, "guaranteed", most
	}
	if l.Capacity > most-s.Minimum.Units {
		return false, "capacity", most - s.Minimum.Units
	}
	l.p, l.q, l.v = p2, q, l.Capacity*q
	l.p1, l.v1 = p1, s.Minimum.Units*q
	l.Capacity += s.Minimum.Units
	l.Initial += s.Minimum.Units
	return true, "", 0
}

// Most returns the largest cost that l can ever allow, or, if reserve is true, the largest that it can ever
// reserve.
func (l *Limit) Most(reserve bool) int64 {
	switch {
	case l.Rate == 0:
		return 0
	case l.Kind == SlidingWindow || l.Kind == SlidingLog:
		return l.Rate
	case reserve:
		return l.Capacity + l.MaxReserved
	default:
		return l.Capacity
	}
}

// Period returns the length of a period. If l has a Calendar, that is its Usual length.
func (l *Limit) Period() Micros { return Micros(l.period) * max(1, l.tick) }

// CanReserve reports whether l supports reservations.
func (l *Limit) CanReserve() bool { return l.Kind == TokenBucket || l.Kind == FixedWindow }

// phaseOf returns the phase of a key's windows, in ticks: 0 <= phase < period.
func (l *Limit) phaseOf(hash uint64) int64 {
	if l.phaseFromKey {
		return int64(hash % uint64(l.period))
	}
	return l.phase
}

func valueOr(p *int64, v int64) int64 {
	if p != nil {
		return *p
	}
	return v
}

func mulExact(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return int64(lo), hi == 0 && lo <= maxExact
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
