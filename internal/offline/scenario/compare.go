package scenario

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// answer is the part of a request's or a limit's result that scenarios compare.
type answer struct {
	ok, never        bool
	missing          limiter.Requirement // the requirement that the request does not meet, or nil
	limited          bool                // some limit applies; otherwise the remaining units have no meaning
	remaining        int64
	retryAfter, wait algorithms.Micros
	reserved         int64  // units reserved of limits with settle
	settlement       string // "" if there was no settlement; several different results are joined by commas
	cost, lost       int64  // units of the settlements
}

func verdict(c *limiter.Call) answer {
	a := answer{ok: !c.Denied, never: c.Never, retryAfter: c.RetryAfter, missing: c.Missing}
	for i := range c.Results {
		r := &c.Results[i]
		if r.Policy == nil || r.Policy.Shadow || r.Outcome == limiter.Replaced || r.Outcome == limiter.Unlimited {
			continue
		}
		if !a.limited || r.Decision.Remaining < a.remaining {
			a.remaining = r.Decision.Remaining
		}
		a.limited = true
		a.wait = max(a.wait, r.Decision.Wait)
		a.reserved += reserved(c, r)
	}
	for i := range c.Settlements {
		a.settle(&c.Settlements[i])
	}
	return a
}

func reserved(c *limiter.Call, r *limiter.Result) int64 {
	if !c.Reserves(r) {
		return 0
	}
	return r.Cost
}

func (a *answer) settle(s *limiter.Settlement) {
	how := "settled"
	switch {
	case s.Policy == nil:
		how = s.Reason.String()
	case s.Repeated:
		how = "repeated"
	case s.Late:
		how = "late"
	case s.Unknown:
		how = "unknown"
	}
	if a.settlement == "" || a.settlement == how {
		a.settlement = how
	} else {
		a.settlement += "," + how
	}
	if s.Policy == nil || s.Repeated {
		return
	}
	a.cost, a.lost = a.cost+s.Real, a.lost+s.Decision.Lost
	if !a.limited || s.Decision.Remaining < a.remaining {
		a.remaining = s.Decision.Remaining
	}
	a.limited = true
}

func decision(c *limiter.Call, r *limiter.Result) answer {
	d := &r.Decision
	if r.Outcome == limiter.Unlimited {
		return answer{ok: true}
	}
	return answer{
		ok: d.Allowed, never: d.Never, limited: true, remaining: d.Remaining, retryAfter: d.RetryAfter, wait: d.Wait, reserved: reserved(c, r),
	}
}

func (a answer) String() string {
	words := []string{"ok"}
	switch {
	case a.missing != nil:
		return "denied: no descriptor has an entry " + a.missing.String() + " with a value, which the domain requires"
	case a.never:
		words = []string{"denied for good: more than the limit can ever hold"}
	case !a.ok:
		words = []string{"denied", "retry after " + duration.Format(a.retryAfter)}
	}
	if a.settlement != "" {
		words = append(words, "settlement "+a.settlement, fmt.Sprintf("cost %d", a.cost), fmt.Sprintf("lost %d", a.lost))
	}
	if !a.limited && a.settlement == "" {
		return strings.Join(append(words, "no limit matched"), ", ")
	}
	if a.reserved > 0 {
		words = append(words, fmt.Sprintf("reserved %d", a.reserved))
	}
	if a.limited {
		words = append(words, "remaining "+strconv.FormatInt(a.remaining, 10))
	}
	if a.wait > 0 {
		words = append(words, "wait "+duration.Format(a.wait))
	}
	return strings.Join(words, ", ")
}

// compare describes the differences between c and the expectation, or returns "". where is the place of the expected
// limit that differs, or the zero Place for the answer to the request.
func (e *Expectation) compare(c *limiter.Call) (where Place, what string) {
	got := verdict(c)
	if what = e.difference(got); what != "" {
		return Place{}, what
	}
	if matched := names(c); e.NotLimited && len(matched) > 0 {
		return Place{}, fmt.Sprintf("expected no limit to match, got %s", strings.Join(matched, ", "))
	}
	for i := range e.Limits {
		if what = e.Limits[i].compare(c); what != "" {
			return e.Limits[i].Place, what
		}
	}
	return Place{}, ""
}

func (e *LimitExpectation) compare(c *limiter.Call) string {
	for i := range c.Results {
		r := &c.Results[i]
		if r.Policy == nil || r.Policy.Name != e.Name || r.Outcome == limiter.Replaced {
			continue
		}
		if e.Key != nil && !slices.Equal(e.Key, c.AppendValues(nil, r)) {
			continue
		}
		if what := e.difference(decision(c, r)); what != "" {
			return "limit " + e.Name + ": " + what
		}
		return ""
	}
	name := e.Name
	if e.Key != nil {
		name += " with key " + strings.Join(e.Key, ",")
	}
	if matched := names(c); len(matched) > 0 {
		return fmt.Sprintf("expected limit %s to match, got %s", name, strings.Join(matched, ", "))
	}
	return fmt.Sprintf("expected limit %s to match, got none", name)
}

func names(c *limiter.Call) (all []string) {
	for i := range c.Results {
		if p := c.Results[i].Policy; p != nil {
			all = append(all, p.Name)
		}
	}
	return all
}

func (e *Expectation) difference(got answer) string {
	var want []string
	wrong := func(is bool, format string, args ...any) {
		if is {
			want = append(want, fmt.Sprintf(format, args...))
		}
	}
	if e.OK != nil {
		wrong(*e.OK != got.ok, "%s", map[bool]string{true: "ok", false: "denied"}[*e.OK])
	}
	if e.Never != nil {
		wrong(*e.Never != got.never, "%s", map[bool]string{true: "never", false: "not never"}[*e.Never])
	}
	if e.Remaining != nil {
		wrong(!got.limited || *e.Remaining != got.remaining, "remaining %d", *e.Remaining)
	}
	if e.RetryAfter != nil {
		wrong(*e.RetryAfter != got.retryAfter, "retry after %s", duration.Format(*e.RetryAfter))
	}
	if e.Wait != nil {
		wrong(*e.Wait != got.wait, "wait %s", duration.Format(*e.Wait))
	}
	if e.Reserved != nil {
		wrong(*e.Reserved != got.reserved, "reserved %d", *e.Reserved)
	}
	if e.Settlement != nil {
		wrong(*e.Settlement != got.settlement, "settlement %s", *e.Settlement)
	}
	if e.Cost != nil {
		wrong(*e.Cost != got.cost, "cost %d", *e.Cost)
	}
	if e.Lost != nil {
		wrong(*e.Lost != got.lost, "lost %d", *e.Lost)
	}
	if len(want) == 0 {
		return ""
	}
	return fmt.Sprintf("expected %s, got %s", strings.Join(want, ", "), got)
}
