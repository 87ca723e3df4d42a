package scenario

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// answer is the part of a request's or a limit's result that scenarios compare.
type answer struct {
	ok, never        bool
	missing          limiter.Requirement // the requirement that the request does not meet, or nil
	remaining        int64               // the constant none if no limit applies
	retryAfter, wait algorithms.Micros
	reserved         int64  // units reserved of limits with settle
	settlement       string // "" if there was no settlement; several different results are joined by commas
	cost, lost       int64  // units of the settlements
}

// none is more than any number of remaining units.
const none = math.MaxInt64

func verdict(c *limiter.Call) answer {
	a := answer{ok: !c.Denied, never: c.Never, retryAfter: c.RetryAfter, missing: c.Missing, remaining: none}
	for i := range c.Results {
		r := &c.Results[i]
		if r.Policy == nil || r.Outcome == limiter.Replaced || r.Outcome == limiter.Unlimited {
			continue
		}
		if a.wait = max(a.wait, r.Decision.Wait); r.Policy.Shadow {
			continue
		}
		a.remaining = min(a.remaining, r.Decision.Remaining)
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
	a.remaining = min(a.remaining, s.Decision.Remaining)
}

func decision(c *limiter.Call, r *limiter.Result) answer {
	d := &r.Decision
	if r.Outcome == limiter.Unlimited {
		return answer{ok: true, remaining: none}
	}
	return answer{
		ok: d.Allowed, never: d.Never, remaining: d.Remaining, retryAfter: d.RetryAfter, wait: d.Wait, reserved: reserved(c, r),
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
	if a.remaining == none && a.settlement == "" {
		return strings.Join(append(words, "no limit matched"), ", ")
	}
	if a.reserved > 0 {
		words = append(words, fmt.Sprintf("reserved %d", a.reserved))
	}
	if a.remaining != none {
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
	for _, a := range aspects {
		if value, expected := e.Values[a.key]; expected && value != a.of(&got) {
			want = append(want, a.words(value))
		}
	}
	if len(want) == 0 {
		return ""
	}
	return fmt.Sprintf("expected %s, got %s", strings.Join(want, ", "), got)
}

// aspect is a part of an answer, with its key in an expectation.
type aspect struct {
	key  string
	read func(*decoder, *yaml.Node) any
	of   func(*answer) any
}

func aspectOf[T any](key string, read func(*decoder, *yaml.Node, string) T, of func(*answer) T) aspect {
	return aspect{key, func(d *decoder, n *yaml.Node) any { return read(d, n, key) }, func(a *answer) any { return of(a) }}
}

// aspects are in the order in which messages list them.
var aspects = []aspect{
	aspectOf("ok", (*decoder).boolean, func(a *answer) bool { return a.ok }),
	aspectOf("never", (*decoder).boolean, func(a *answer) bool { return a.never }),
	aspectOf("remaining", (*decoder).integer, func(a *answer) int64 { return a.remaining }),
	aspectOf("retry_after", (*decoder).span, func(a *answer) algorithms.Micros { return a.retryAfter }), // 0 if the answer is ok or never
	aspectOf("wait", (*decoder).span, func(a *answer) algorithms.Micros { return a.wait }),
	aspectOf("reserved", (*decoder).integer, func(a *answer) int64 { return a.reserved }),
	aspectOf("settlement", (*decoder).settlement, func(a *answer) string { return a.settlement }),
	aspectOf("cost", (*decoder).integer, func(a *answer) int64 { return a.cost }),
	aspectOf("lost", (*decoder).integer, func(a *answer) int64 { return a.lost }),
}

func (a *aspect) words(value any) string {
	switch value {
	case true:
		return a.key
	case false:
		return map[string]string{"ok": "denied", "never": "not never"}[a.key]
	}
	if d, ok := value.(algorithms.Micros); ok {
		value = duration.Format(d)
	}
	return fmt.Sprintf("%s %v", strings.ReplaceAll(a.key, "_", " "), value)
}
