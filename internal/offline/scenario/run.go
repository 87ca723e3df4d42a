package scenario

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// Failure is a step that was answered otherwise than expected.
type Failure struct {
	Place   Place
	Message string
}

// run is one run of a scenario.
type run struct {
	limiter *limiter.Limiter
	now     algorithms.Micros
	call    limiter.Call
}

// Run runs s against a configuration, with buckets of its own. A step fails once, at its first
// answer that is not as expected; the steps after it are run all the same.
func (s *Scenario) Run(ctx context.Context, snapshot *limiter.Snapshot) (failures []Failure) {
	r := &run{}
	r.limiter = limiter.New(memory.New(memory.Config{Clock: func() time.Time { return time.UnixMicro(int64(r.now)) }}), limiter.Config{})
	r.limiter.Swap(snapshot)
	for i := range s.Steps {
		if f := r.step(ctx, s.Start, &s.Steps[i]); f != nil {
			failures = append(failures, *f)
		}
	}
	return failures
}

func (r *run) step(ctx context.Context, start algorithms.Micros, s *Step) *Failure {
	for n := range s.Times {
		at := s.At + algorithms.Micros(n)*s.Every
		r.now = start + at
		where, what := r.ask(ctx, s)
		if what == "" {
			continue
		}
		if where == (Place{}) {
			where = s.Place
		}
		times := ""
		if s.Times > 1 {
			times = fmt.Sprintf(", ask %d of %d", n+1, s.Times)
		}
		return &Failure{where, fmt.Sprintf("at %s%s: %s", descriptors.Span(at), times, what)}
	}
	return nil
}

// ask sends one request and describes how the answer differs from the expected one, or returns "".
func (r *run) ask(ctx context.Context, s *Step) (where Place, what string) {
	c := &r.call
	c.Reset()
	c.Request.Domain = s.Domain
	if s.Domain == "" && len(s.Limits) == 0 {
		if c.Request.Domain = onlyDomain(r.limiter.Current()); c.Request.Domain == "" {
			return Place{}, "no domain is named, and several are configured"
		}
	}
	c.Descriptors = append(c.Descriptors, s.Descriptors...)
	c.Limits = append(c.Limits, s.Limits...)
	c.DryRun = s.Look
	if len(s.Limits) == 0 { // a request of a proxy, for which a wait longer than max_delay is a denial
		c.Request.Hold = algorithms.MaxTime
	}
	if err := r.limiter.Check(ctx, c); err != nil {
		return Place{}, err.Error()
	}
	return s.Expect.compare(c)
}

// onlyDomain is the one domain there is; "" where there are several.
func onlyDomain(s *limiter.Snapshot) string {
	only := ""
	for name := range s.Domains {
		if only != "" {
			return ""
		}
		only = name
	}
	return only
}

// answer is what is compared: of a request or of one limit.
type answer struct {
	ok, never        bool
	missing          limiter.Requirement // what the request lacks; nil: nothing
	limited          bool                // some limit has a say; otherwise there is no remaining
	remaining        int64
	retryAfter, wait algorithms.Micros
}

// verdict is the answer to a request.
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
	}
	return a
}

func decision(r *limiter.Result) answer {
	d := &r.Decision
	if r.Outcome == limiter.Unlimited {
		return answer{ok: true}
	}
	return answer{ok: d.Allowed, never: d.Never, limited: true, remaining: d.Remaining, retryAfter: d.RetryAfter, wait: d.Wait}
}

func (a answer) String() string {
	words := []string{"ok"}
	switch {
	case a.missing != nil:
		return "denied: no descriptor has an entry " + a.missing.String() + " with a value, which the domain requires"
	case a.never:
		words = []string{"denied for good: more than the limit can ever give"}
	case !a.ok:
		words = []string{"denied", "retry after " + descriptors.Span(a.retryAfter)}
	}
	if !a.limited {
		return strings.Join(append(words, "no limit met"), ", ")
	}
	words = append(words, "remaining "+strconv.FormatInt(a.remaining, 10))
	if a.wait > 0 {
		words = append(words, "wait "+descriptors.Span(a.wait))
	}
	return strings.Join(words, ", ")
}

// compare says in what c is not as expected.
func (e *Expectation) compare(c *limiter.Call) (where Place, what string) {
	got := verdict(c)
	if what = e.difference(got); what != "" {
		return Place{}, what
	}
	if met := names(c); e.NotLimited && len(met) > 0 {
		return Place{}, fmt.Sprintf("expected no limit to be met, got %s", strings.Join(met, ", "))
	}
	for i := range e.Limits {
		if what = e.Limits[i].compare(c); what != "" {
			return e.Limits[i].Place, what
		}
	}
	return Place{}, ""
}

// compare says in what the limit's answer is not as expected.
func (e *LimitExpectation) compare(c *limiter.Call) string {
	for i := range c.Results {
		r := &c.Results[i]
		if r.Policy == nil || r.Policy.Name != e.Name || r.Outcome == limiter.Replaced {
			continue
		}
		if e.Key != nil && !slices.Equal(e.Key, c.AppendValues(nil, r)) {
			continue
		}
		if what := e.difference(decision(r)); what != "" {
			return "limit " + e.Name + ": " + what
		}
		return ""
	}
	name := e.Name
	if e.Key != nil {
		name += " with key " + strings.Join(e.Key, ",")
	}
	if met := names(c); len(met) > 0 {
		return fmt.Sprintf("expected limit %s to be met, got %s", name, strings.Join(met, ", "))
	}
	return fmt.Sprintf("expected limit %s to be met, got none", name)
}

// names are the limits that were met.
func names(c *limiter.Call) (all []string) {
	for i := range c.Results {
		if p := c.Results[i].Policy; p != nil {
			all = append(all, p.Name)
		}
	}
	return all
}

// difference says what is expected otherwise than it came.
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
		wrong(*e.RetryAfter != got.retryAfter, "retry after %s", descriptors.Span(*e.RetryAfter))
	}
	if e.Wait != nil {
		wrong(*e.Wait != got.wait, "wait %s", descriptors.Span(*e.Wait))
	}
	if len(want) == 0 {
		return ""
	}
	return fmt.Sprintf("expected %s, got %s", strings.Join(want, ", "), got)
}
