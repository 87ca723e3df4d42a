package adjust

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Apply returns a copy of p with the change of a. The error is the reason why a does not apply to p as it is
// configured now. The caller then uses p itself.
func (a *Adjustment) Apply(p *descriptors.Policy) (*descriptors.Policy, error) {
	changed := *p
	changed.Adjusted = &descriptors.Adjusted{ID: a.ID, Expires: a.Expires, Unlimited: a.Change.Unlimited, Block: a.Change.Block}
	switch {
	case a.Change.Block:
		changed.Shadow, changed.Quota = false, false
		changed.Reference = p.Reference && p.Limit.Rate > 0 // without numbers there is no window to report
		return &changed, nil
	case p.Unlimited:
		return nil, errors.New("the limit is configured as unlimited: it has no numbers to change; it can be blocked")
	case a.Change.Unlimited:
		changed.Unlimited = true
		return &changed, nil
	case a.Algorithm != 0 && a.Algorithm != p.Limit.Kind:
		return nil, fmt.Errorf("the limit is a %s now; the adjustment was made for a %s", kindName(p.Limit.Kind), kindName(a.Algorithm))
	}
	spec, err := a.Change.spec(p.Limit)
	if err != nil {
		return nil, err
	}
	return &changed, renumber(&changed, p, spec)
}

// renumber sets the numbers of changed, a copy of p, to those of spec, and changes its shards, lease, reservations and
// local bucket accordingly.
func renumber(changed, p *descriptors.Policy, spec algorithms.Spec) error {
	limit, err := algorithms.Compile(spec)
	if err != nil {
		return fmt.Errorf("the limit cannot have these numbers: %w", err)
	}
	changed.Limit, changed.Adjusted.Configured = &limit, p.Limit
	if p.Extras == nil {
		return nil
	}
	more := *p.Extras // a copy, because other policies share the original
	changed.Extras = &more
	if n := len(more.Shards); n > 0 {
		if more.Shards, err = algorithms.Split(spec, n); err != nil {
			return fmt.Errorf("the limit has %d shards, and these numbers cannot be split: %w", n, err)
		}
	}
	if more.Settle != nil {
		more.Settle = more.Settle.Within(limit.Capacity)
	}
	if more.Lease != nil {
		lease := *more.Lease
		lease.Most = scale(lease.Most, limit.Capacity, max(1, p.Limit.Capacity))
		more.Lease = &lease
	}
	if more.Local != nil {
		local, err := algorithms.Compile(descriptors.Part(spec, more.LocalShare))
		if err != nil {
			return fmt.Errorf("the share of this process cannot have these numbers: %w", err)
		}
		more.Local = &local
	}
	return nil
}

func (c *Change) spec(l *algorithms.Limit) (algorithms.Spec, error) {
	if l.Rate == 0 {
		return algorithms.Spec{}, errors.New("the limit is configured to allow nothing: it has no numbers to change")
	}
	s := l.Spec()
	tied := s.Capacity != nil && *s.Capacity == s.Rate && l.Kind != algorithms.LeakyBucket // a capacity that equals the rate counts as not configured
	if c.Factor != 0 {
		s.Rate = c.Factor.multiply(s.Rate)
		if s.Capacity != nil {
			*s.Capacity = c.Factor.multiply(*s.Capacity)
		}
		if s.Minimum != nil {
			s.Minimum = &algorithms.Rate{Units: c.Factor.multiply(s.Minimum.Units), Period: s.Minimum.Period}
		}
		if s.Rate < 1 {
			return s, fmt.Errorf("%s times a rate of %d is less than 1; to deny every request, use block", c.Factor, l.Rate)
		}
		return fitInitial(s, l), nil
	}
	if c.Period != 0 {
		if l.Calendar != nil {
			return s, fmt.Errorf("the period of this limit is a calendar %s, which cannot be adjusted; adjust rate or capacity instead", l.Calendar.Unit)
		}
		s.Period = c.Period
	}
	if c.Rate != nil {
		s.Rate = *c.Rate
		if tied {
			s.Capacity = nil
		}
	}
	if c.Capacity != nil {
		if l.Kind == algorithms.SlidingWindow || l.Kind == algorithms.SlidingLog {
			return s, fmt.Errorf("a %s has no capacity: it admits rate in each period", kindName(l.Kind))
		}
		capacity := *c.Capacity
		s.Capacity = &capacity
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

func (f Factor) multiply(n int64) int64 { return scale(n, int64(f), int64(one)) }

// scale returns n*factor/divisor, rounded down. If the result is out of range, it is the largest int64. n and factor
// must be at least 0, and divisor at least 1.
func scale(n, factor, divisor int64) int64 {
	hi, lo := bits.Mul64(uint64(n), uint64(factor))
	if hi >= uint64(divisor) {
		return math.MaxInt64
	}
	quotient, _ := bits.Div64(hi, lo, uint64(divisor))
	if quotient > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(quotient)
}

// Words describes in a sentence the effect of a on a limit that is configured as p.
func (a *Adjustment) Words(p *descriptors.Policy) (string, error) {
	changed, err := a.Apply(p)
	if err != nil {
		return "", err
	}
	until := moment(a.Expires).Truncate(time.Second).Format("2006-01-02 15:04:05 UTC")
	switch {
	case a.Change.Block:
		return fmt.Sprintf("%s: every request is denied until %s", a.Target.String(), until), nil
	case a.Change.Unlimited:
		return fmt.Sprintf("%s: every request is allowed and charged nothing until %s (configured: %s); consumed units stay consumed", a.Target.String(), until, p.Words()), nil
	default:
		words := changed.Words()
		if s := changed.Extra().Settle; s != p.Extra().Settle {
			words += fmt.Sprintf("; a request reserves at most %d", s.Most)
		}
		return fmt.Sprintf("%s: %s, until %s (configured: %s); consumed units stay consumed", a.Target.String(), words, until, p.Words()), nil
	}
}
