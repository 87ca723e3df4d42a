package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/internal/estimate"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Failure describes an answer that differs from the expected one.
type Failure struct {
	Place   Place
	Message string
}

type run struct {
	limiter *limiter.Limiter
	now     algorithms.Micros
	call    limiter.Call
	ids     map[string][]string // the ids of reservations, by the Reserves of their steps
}

// Run runs s with a configuration and new buckets. A step ends at its first unexpected answer. The steps
// after it still run.
func (s *Scenario) Run(ctx context.Context, snapshot *limiter.Snapshot) (failures []Failure) {
	r := &run{ids: map[string][]string{}}
	r.limiter = limiter.New(memory.New(memory.Config{Clock: func() time.Time { return time.UnixMicro(int64(r.now)) }}), limiter.Config{
		IDs: reservation.NewKeys(func() []string { return []string{"of all scenarios"} }), Estimates: &estimate.Estimates{},
		Now: func() algorithms.Micros { return r.now },
	})
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
		where, what := r.send(ctx, s, n)
		if what == "" {
			continue
		}
		if where == (Place{}) {
			where = s.Place
		}
		times := ""
		if s.Times > 1 {
			times = fmt.Sprintf(", request %d of %d", n+1, s.Times)
		}
		return &Failure{where, fmt.Sprintf("at %s%s: %s", duration.Format(at), times, what)}
	}
	return nil
}

// send sends request n of s, counted from 0. It describes the difference between the answer and the expected
// one, or returns "".
func (r *run) send(ctx context.Context, s *Step, n int) (where Place, what string) {
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
	if s.Done != "" {
		if problem := r.addDone(c, s, n); problem != "" {
			return Place{}, problem
		}
	}
	c.DryRun, c.Returns = s.DryRun, true
	if len(s.Limits) == 0 { // a request with descriptors may wait up to the max_delay of a leaky bucket, like a request of a proxy
		c.Request.MaxDelay = algorithms.MaxTime
	}
	if err := r.limiter.Check(ctx, c); err != nil {
		return Place{}, err.Error()
	}
	if s.Reserves != "" {
		r.ids[s.Reserves] = append(r.ids[s.Reserves], string(c.AppendID(nil)))
	}
	return s.Expect.compare(c)
}

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

// addDone adds the descriptors that settle reservation n of the step that s names, as a proxy sends them at
// the end of the stream. It returns a problem if there is no such reservation, or "".
func (r *run) addDone(c *limiter.Call, s *Step, n int) (problem string) {
	domain := r.limiter.Current().Domains[c.Request.Domain]
	switch ids := r.ids[s.Done]; {
	case domain == nil || domain.Settle == nil:
		return fmt.Sprintf("domain %q has no section settle, so nothing can be settled", descriptors.Printable(c.Request.Domain))
	case len(ids) == 0:
		return fmt.Sprintf("no step before has reserves: %s", s.Done)
	case n >= len(ids):
		return fmt.Sprintf("reserves: %s has reserved %d times, and this is request %d", s.Done, len(ids), n+1)
	default:
		end := c.AddDescriptor()
		end.Entries = append(end.Entries, descriptors.Entry{Key: domain.Settle.End, Value: ids[n]})
		if s.Real >= 0 {
			done := c.AddDescriptor()
			done.State(s.Real)
			done.Entries = []descriptors.Entry{{Key: domain.Settle.Key, Value: ids[n]}}
		}
		return ""
	}
}
