package ratelimit

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/weights"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Limits has limits by name.
type Limits map[string]Limit

// Limit configures one limit. Make one with TokenBucket, FixedWindow, SlidingWindow, SlidingLog,
// LeakyBucket or Concurrency, and set other fields if necessary. All times are whole numbers of microseconds.
// docs/algorithms.md in the repository compares the algorithms.
type Limit struct {
	// Algorithm is one of the kinds of package algorithms, except Guaranteed: set the field Guaranteed.
	Algorithm algorithms.Kind
	// Rate is the number of units per Period. With a Rate of 0, every request for units fails with
	// ErrNeverFits.
	Rate int64
	// Period is longer than 0, except with a Calendar.
	Period time.Duration
	// Capacity is the most units that a token bucket or a fixed window can hold; nil means Rate. For a leaky bucket it
	// is the number of places in the queue; nil means none. For Concurrency it is the number of units in flight.
	Capacity *int64
	// Initial is the number of units in a new bucket; nil means Capacity.
	Initial *int64
	// MaxReserved is how many units below zero reservations and Overdraw may go. nil means as many as can be
	// computed exactly. That depends on Rate and Period, and is at most 2^53.
	MaxReserved *int64
	// Settles makes reservations of a token bucket or a fixed window exact. Settle then refunds what would
	// be left if the real cost had been known at the start, and always accepts a real cost that is larger.
	// Limiter.Settle describes when it refunds less.
	//
	// With MaxReserved 0, a reservation that does not fit now is denied. So concurrent calls never exceed
	// the limit by more than the error of their estimates.
	//
	// Settles cannot be combined with Overdraw, Penalty or Guaranteed, nor with a fixed window whose
	// Capacity is above its Rate.
	Settles bool
	// MaxDebt is how many units below zero Settle may charge a limit with Settles. Units beyond that are not
	// charged. nil means Capacity, or less if the numbers would not stay exact.
	MaxDebt *int64
	// Start is a moment at which a fixed window starts. With the zero Time, the windows of each key start
	// at a time derived from the key, so that not all buckets are refilled at once.
	Start time.Time
	// Calendar, if not nil, makes the windows of a fixed window those of a calendar, such as days in a time
	// zone. See package calendar. Period and Start must then be zero.
	Calendar *algorithms.Calendar
	// Overdraw charges the cost of every request, below zero if necessary. A request is denied if its cost was
	// not available.
	Overdraw bool
	// Penalty, if not nil, blocks a key after repeated denials.
	Penalty *Penalty
	// Guaranteed, if not nil, is a guaranteed minimum rate, beside the rate of a token bucket. The bucket can then
	// hold its Units in addition to Capacity.
	Guaranteed *Rate
	// Weights, if not nil, has the cost of one unit of each kind: a whole number, a decimal fraction or a
	// fraction, such as {"input": "1", "cached": "1/10"}. Limiter.Cost and Request.Costs use them.
	Weights map[string]string

	// loaded is set by package limitsfile. Then the other fields have no effect.
	loaded *limiter.Policy
}

// Loaded returns the limit p of a configuration file. It is for package limitsfile: programs cannot name the type of p.
func Loaded(p *limiter.Policy) Limit { return Limit{loaded: p} }

// Penalty blocks a key after repeated denials.
type Penalty struct {
	// After is the number of denials within the Period of the limit that starts a block.
	After int64
	// For is the length of the first block, and Max that of the longest. A block that starts within Max after
	// the end of another one lasts twice as long as that one, up to Max.
	For, Max time.Duration
}

// Rate is a number of units per period.
type Rate struct {
	Units  int64
	Period time.Duration
}

// TokenBucket returns a limit of rate units per period with bursts of up to rate units. Units flow in continuously.
func TokenBucket(rate int64, period time.Duration) Limit {
	return Limit{Algorithm: algorithms.TokenBucket, Rate: rate, Period: period}
}

// FixedWindow returns a limit of rate units in each window of one period. A client can use the units of two
// windows in quick succession around the edge between them.
func FixedWindow(rate int64, period time.Duration) Limit {
	return Limit{Algorithm: algorithms.FixedWindow, Rate: rate, Period: period}
}

// SlidingWindow returns a limit of about rate units in any span of one period. It estimates the count of the span from
// the counts of two windows.
func SlidingWindow(rate int64, period time.Duration) Limit {
	return Limit{Algorithm: algorithms.SlidingWindow, Rate: rate, Period: period}
}

// SlidingLog returns a limit of exactly rate units in any span of one period. It stores the time of every
// unit, so rate must not exceed algorithms.MaxLogRate.
func SlidingLog(rate int64, period time.Duration) Limit {
	return Limit{Algorithm: algorithms.SlidingLog, Rate: rate, Period: period}
}

// LeakyBucket returns a limit that spaces requests: one every period/rate. Up to queue further requests are
// allowed with a Result.Wait, which the caller must wait for.
func LeakyBucket(rate int64, period time.Duration, queue int64) Limit {
	return Limit{Algorithm: algorithms.LeakyBucket, Rate: rate, Period: period, Capacity: &queue}
}

func (l Limit) named(domain, name string) (*limit, error) {
	if l.loaded != nil {
		if in := l.loaded.Domain; in != domain || l.loaded.Name != name {
			return nil, fmt.Errorf("it was loaded as limit %q of domain %q; keep its name, and Config.Domain", l.loaded.Name, in)
		}
		return newLimit(*l.loaded), nil
	}
	return l.compiled(domain, "limit", name, domain+"/"+name)
}

// inline compiles l as a limit that comes with a request. It charges the same buckets as a config sent to
// the HTTP API, and never those of a limit in Config.Limits.
func (l Limit) inline(domain, name string) (*limit, error) {
	switch {
	case l.loaded != nil:
		return nil, errors.New("a loaded limit cannot come with a request; add it to Config.Limits")
	case l.Settles:
		return nil, errors.New("a limit with Settles cannot come with a request, which cannot reserve it; add it to Config.Limits")
	}
	return l.compiled(domain, "inline", name, domain+"/#inline")
}

// compiled compiles l as a limit of a kind: "limit" or "inline".
func (l Limit) compiled(domain, kind, name, owner string) (*limit, error) {
	numbers, err := l.compile()
	weights, wrong := l.weights()
	if err = errors.Join(err, wrong); err != nil {
		return nil, err
	}
	m := newLimit(limiter.Policy{
		Index: -1, Domain: domain, Name: name, Owner: owner, Limit: &numbers,
		Keys: descriptors.Keys{Prefix: descriptors.Prefix(domain, kind, name, numbers.Kind)}, Extras: &limiter.Extras{Named: true, Weights: weights},
	})
	m.inline = kind == "inline"
	return m, nil
}

func newLimit(p limiter.Policy) *limit {
	units, seconds := limiter.Shown(p.Limit)
	return &limit{policy: p, units: units, window: time.Duration(min(seconds, math.MaxInt64/int64(time.Second))) * time.Second}
}

func (l Limit) compile() (algorithms.Limit, error) {
	spec := algorithms.Spec{
		Kind: l.Algorithm, Rate: l.Rate, Capacity: l.Capacity, Initial: l.Initial, MaxReserved: l.MaxReserved,
		Calendar: l.Calendar, Overdraw: l.Overdraw, Settles: l.Settles, MaxDebt: l.MaxDebt,
	}
	var inexact spans
	spec.Period = inexact.micros("period", l.Period)
	if l.Calendar != nil && l.Period != 0 {
		inexact = append(inexact, fmt.Errorf("period cannot be combined with calendar, which determines when windows start; remove period (%v)", l.Period))
	}
	if !l.Start.IsZero() {
		start := algorithms.Micros(l.Start.UnixMicro())
		if !l.Start.Equal(time.UnixMicro(int64(start))) {
			inexact.add("start", l.Start)
		}
		spec.Start = &start
	}
	if p := l.Penalty; p != nil {
		spec.Penalty = &algorithms.Penalty{
			After: p.After, For: inexact.micros("penalty: for", p.For), Max: inexact.micros("penalty: max", p.Max),
		}
	}
	if g := l.Guaranteed; g != nil {
		spec.Minimum = &algorithms.Rate{Units: g.Units, Period: inexact.micros("guaranteed: period", g.Period)}
	}
	numbers, err := algorithms.Compile(spec)
	return numbers, errors.Join(append(inexact, withFieldNames(err))...)
}

// withFieldNames returns the errors of package algorithms with the names of the fields of Limit: it has a
// Calendar where configuration files have time_zone.
func withFieldNames(err error) error {
	mistakes, ok := err.(algorithms.SpecErrors) //nolint:errorlint // Compile returns no other type
	if !ok {
		return err
	}
	for i := range mistakes {
		m := &mistakes[i]
		m.Field, m.Problem = strings.ReplaceAll(m.Field, "time_zone", "calendar"), strings.ReplaceAll(m.Problem, "time_zone", "calendar")
	}
	return mistakes
}

// spans collects errors about times that are not whole numbers of microseconds. Rounding them silently
// would change the limit.
type spans []error

func (s *spans) micros(field string, d time.Duration) algorithms.Micros {
	if d%time.Microsecond != 0 {
		s.add(field, d)
	}
	return algorithms.Micros(d / time.Microsecond)
}

func (s *spans) add(field string, t any) {
	*s = append(*s, fmt.Errorf("%s must be a whole number of microseconds, but is %v", field, t))
}

// KeyText describes the key of a bucket (backend.Charge.Key) in readable form, such as "limit send of
// domain edge, key bob". It is for the logs of a wrapper of a Store. Do not parse the text: different keys
// can have the same text.
func KeyText(key []byte) string { return descriptors.KeyText(key) }

// ErrNoWeights means that costs by kind were passed (Limiter.Cost, Request.Costs) for a limit without Weights.
var ErrNoWeights = errors.New("the limit has no weights")

// Cost returns the units that a request costs, by the Weights of a limit. costs has numbers of units by
// kind, such as input and output tokens; their weighted sum is rounded up once. Pass the result to AllowN,
// ReserveN or Settle. An unknown kind, a negative number and a sum above 2^53 are errors.
func (l *Limiter) Cost(name string, costs map[string]int64) (int64, error) {
	m := l.named[name]
	if m == nil {
		return 0, unknown(name)
	}
	return m.cost(costs)
}

func (m *limit) cost(costs map[string]int64) (int64, error) {
	w := m.policy.Extra().Weights
	if w == nil {
		return 0, fmt.Errorf("limit %q: %w", m.policy.Name, ErrNoWeights)
	}
	cost, err := w.Cost(costs)
	if err != nil {
		return 0, fmt.Errorf("limit %q: costs: %w", m.policy.Name, err)
	}
	return cost, nil
}

func (l Limit) weights() (*weights.Weights, error) {
	if l.Weights == nil {
		return nil, nil //nolint:nilnil // none
	}
	byName := make(map[string]weights.Weight, len(l.Weights))
	for name, text := range l.Weights {
		w, err := weights.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("weights: the weight of %q: %w", name, err)
		}
		byName[name] = w
	}
	w, err := weights.Compile(byName)
	if err != nil {
		return nil, fmt.Errorf("weights: %w", err)
	}
	return w, nil
}
