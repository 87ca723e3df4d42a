package limiter

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// apply returns a copy of p with the change of a. The error is the reason why a does not apply to p as it is
// configured now. The caller then uses p itself.
func apply(a *adjust.Adjustment, p *Policy) (*Policy, error) {
	changed := *p
	changed.Adjusted = &PolicyAdjustment{ID: a.ID, Expires: a.Expires, Unlimited: a.Change.Unlimited, Block: a.Change.Block}
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
		return nil, fmt.Errorf("the limit is a %s now; the adjustment was made for a %s", adjust.KindName(p.Limit.Kind), adjust.KindName(a.Algorithm))
	}
	spec, err := a.Change.Spec(p.Limit)
	if err != nil {
		return nil, err
	}
	return &changed, renumber(&changed, p, spec)
}

// renumber sets the numbers of changed, a copy of p, to those of spec, and changes its shards, lease, reservations and
// local bucket accordingly.
func renumber(changed, p *Policy, spec algorithms.Spec) error {
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
		lease.Most = adjust.Scale(lease.Most, limit.Capacity, max(1, p.Limit.Capacity))
		more.Lease = &lease
	}
	if more.Local != nil {
		local, err := algorithms.Compile(SpecShare(spec, more.LocalShare))
		if err != nil {
			return fmt.Errorf("the share of this process cannot have these numbers: %w", err)
		}
		more.Local = &local
	}
	return nil
}

// AdjustmentWords describes in a sentence the effect of a on a limit that is configured as p. The error is the reason if
// a has no effect.
func AdjustmentWords(a *adjust.Adjustment, p *Policy) (string, error) {
	changed, err := apply(a, p)
	if err != nil {
		return "", err
	}
	until := a.End()
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

// checkTarget returns an error if t has a key or an entry that no request has. policies are those of the limit.
func checkTarget(t *adjust.Target, policies []*Policy) error {
	switch {
	case t.AllKeys:
		return nil
	case t.Entry != "":
		return checkEntry(t, policies)
	default:
		return checkKey(policies, t.Limit, t.Key)
	}
}

// checkEntry returns an error if no key of the limit has the entry of t.
func checkEntry(t *adjust.Target, policies []*Policy) error {
	if _, has := positionsOf(policies, t.Entry); has {
		return nil
	}
	var entries []string
	for _, p := range policies {
		entries = append(entries, p.Extra().OpenKeys...)
	}
	slices.Sort(entries)
	if entries = slices.Compact(entries); len(entries) == 0 {
		return fmt.Errorf("the keys of limit %s have no entries; adjust one key, or all keys", descriptors.Printable(t.Limit))
	}
	return fmt.Errorf("the keys of limit %s have no entry %q; they have %s", descriptors.Printable(t.Limit), descriptors.Printable(t.Entry), strings.Join(entries, ", "))
}

// ShareOf returns n*share, rounded down. share is from 0 to 1; its decimals after the ninth do not count. n is at least 0.
func ShareOf(n int64, share float64) int64 {
	const one = 1_000_000_000
	billionths := min(one, uint64(share*one+1e-3)) // 0.29*one may be less than 290,000,000 in floating point
	high, low := bits.Mul64(uint64(n), billionths)
	part, _ := bits.Div64(high, low, one)
	return int64(part)
}

// SpecShare returns s with all amounts multiplied by share (0 to 1) and rounded down. A rate or capacity above 0 stays
// at least 1.
func SpecShare(s algorithms.Spec, share float64) algorithms.Spec {
	part := func(n *int64, least int64) *int64 {
		if n == nil {
			return nil
		}
		m := min(*n, max(least, ShareOf(*n, share)))
		return &m
	}
	s.Rate = *part(&s.Rate, 1)
	s.Capacity, s.MaxReserved, s.MaxDebt = part(s.Capacity, 1), part(s.MaxReserved, 0), part(s.MaxDebt, 0)
	if s.Initial = part(s.Initial, 0); s.Initial != nil && s.Capacity == nil {
		*s.Initial = min(*s.Initial, s.Rate)
	}
	if s.Minimum != nil {
		s.Minimum = &algorithms.Rate{Units: *part(&s.Minimum.Units, 1), Period: s.Minimum.Period}
	}
	return s
}
