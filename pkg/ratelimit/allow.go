package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Allow consumes one unit. The error is ErrDenied, ErrUnknown, or one of the Store's.
func (l *Limiter) Allow(ctx context.Context, name string, key ...string) (Result, error) {
	return l.one(ctx, name, key, algorithms.Charge{Cost: 1})
}

// AllowN consumes n units, all or none; n must be at least 1. The error is ErrDenied, ErrNeverFits, ErrUnits, ErrUnknown,
// or one of the Store's.
func (l *Limiter) AllowN(ctx context.Context, n int64, name string, key ...string) (Result, error) {
	if n < 1 {
		return Result{}, unitsError(name, n)
	}
	return l.one(ctx, name, key, algorithms.Charge{Cost: n})
}

// Peek returns the result that AllowN would return, and consumes nothing. With n = 0 it returns the state
// of the bucket. Other requests may consume units between Peek and AllowN, so do not use Peek to decide:
// call AllowN alone.
func (l *Limiter) Peek(ctx context.Context, n int64, name string, key ...string) (Result, error) {
	if n < 0 {
		return Result{}, unitsError(name, n)
	}
	return l.one(ctx, name, key, algorithms.Charge{Cost: n, DryRun: true})
}

// Refund returns n units to a bucket, which never holds more than its capacity; n must be at least 1. To return units of
// a particular request exactly, reserve them and use Settle.
func (l *Limiter) Refund(ctx context.Context, n int64, name string, key ...string) (Result, error) {
	if n < 1 {
		return Result{}, unitsError(name, n)
	}
	return l.one(ctx, name, key, algorithms.Charge{Cost: -n})
}

// Reset makes a bucket a new one.
func (l *Limiter) Reset(ctx context.Context, name string, key ...string) error {
	if l.named[name] == nil {
		return unknown(name)
	}
	c := limiter.Call{Request: limiter.Request{Domain: l.domain, Limits: []limiter.NamedCharge{{Name: name, Key: key}}}}
	return l.limiter.Reset(ctx, &c)
}

// one decides one limit.
func (l *Limiter) one(ctx context.Context, name string, key []string, ask algorithms.Charge) (Result, error) {
	m := l.named[name]
	if m == nil {
		return Result{}, unknown(name)
	}
	if ask.Cost > 0 && m.then() != nil {
		return l.oneOrPayer(ctx, m, key, ask)
	}
	d := l.direct.Get().(*limiter.Direct)
	d.Add(&m.policy, key, ask)
	d.Take(ctx, l.store)
	result, err := m.decided(d, 0)
	d.Reset()
	l.direct.Put(d)
	return result, err
}

// decided returns the result of limit m, the i-th in d, and its error.
func (m *limit) decided(d *limiter.Direct, i int) (Result, error) {
	decision, charge := d.Decision(i)
	if decision.Err != nil && charge.NeverFits() {
		return Result{Limit: m.units, Window: m.window}, ErrNeverFits
	}
	return m.outcome(decision)
}

// outcome returns the result of a decision on limit m, and the error for it.
func (m *limit) outcome(d *backend.Decision) (Result, error) {
	switch {
	case d.Err != nil:
		return Result{}, fmt.Errorf("limit %q: %w", m.policy.Name, d.Err)
	case d.Never:
		return m.result(&d.Decision), ErrNeverFits
	case !d.Allowed:
		return m.result(&d.Decision), ErrDenied
	default:
		return m.result(&d.Decision), nil
	}
}

// Request is one limit's part of a call of AllowAll.
type Request struct {
	// Name is the name of the limit, and Key the key of the bucket.
	Name string
	Key  []string
	// N is the number of units, at least 1.
	N int64
	// Costs, if not nil, has numbers of units by kind, such as {"input": 1200, "output": 300}. The call
	// sets N to their cost by the Weights of the limit (see Limiter.Cost).
	Costs map[string]int64
	// Reserve makes the request a reservation: it may be allowed with a Result.Wait, after which its units
	// are available.
	Reserve bool
	// Limit, if not nil, is the limit itself. It is for numbers that the program keeps elsewhere, such as
	// those of a tenant. Calls with other numbers under the same Name keep the consumption. Name must not
	// be in Config.Limits, and such a request cannot Reserve. The HTTP API charges the same buckets for a
	// request with a config.
	Limit *Limit

	// Result is set by the call.
	Result Result
	// Reservation is set by the call if it reserved units.
	Reservation Reservation

	limit *limit // the compiled limit
}

// AllowAll consumes units of several limits, all or none, and sets the Result of each request. Requests for
// the same bucket are added up.
//
// If a limit denies, the error is ErrDenied, and each Result has the decision of its own limit. The time to
// wait is the longest RetryAfter of the limits that deny. If one limit can never hold the units requested,
// the error is ErrNeverFits.
//
// In a Redis Cluster, limits in different slots may be charged for a short time before they are refunded.
func (l *Limiter) AllowAll(ctx context.Context, requests []Request) error {
	d := l.direct.Get().(*limiter.Direct)
	defer l.direct.Put(d)
	defer d.Reset()
	alternatives := false
	for i := range requests {
		r := &requests[i]
		if err := l.find(r); err != nil {
			return err
		}
		m := r.limit
		alternatives = alternatives || m.then() != nil
		d.Add(&m.policy, r.Key, algorithms.Charge{Cost: r.N, Reserve: r.Reserve && m.policy.Limit.CanReserve()})
	}
	switch {
	case len(requests) == 0:
		return nil
	case alternatives:
		return l.call(ctx, nil, requests)
	}
	d.Take(ctx, l.store)
	var worst error
	for i := range requests {
		r, m := &requests[i], requests[i].limit
		var err error
		r.Result, err = m.decided(d, i)
		worst = worse(worst, err)
		if decision, _ := d.Decision(i); r.Reserve && decision.Allowed {
			r.Reservation = l.reservation(m, r.Key, r.N, decision, [16]byte{})
		}
	}
	if worst != nil {
		forget(requests)
	}
	return worst
}

// forget removes the reservations of a call that consumed nothing.
func forget(requests []Request) {
	for i := range requests {
		requests[i].Reservation = Reservation{}
	}
}

// worse returns the error that takes precedence: first an error of the Store, then ErrNeverFits, then
// ErrDenied.
func worse(a, b error) error {
	rank := func(err error) int {
		switch err { //nolint:errorlint // decided returns these unwrapped
		case nil:
			return 0
		case ErrDenied:
			return 1
		case ErrNeverFits:
			return 2
		default:
			return 3
		}
	}
	if rank(b) > rank(a) {
		return b
	}
	return a
}

// find sets the limit of r, and returns an error if r is invalid.
func (l *Limiter) find(r *Request) (err error) {
	r.limit = l.named[r.Name]
	if r.Limit != nil {
		if r.limit, err = l.ownLimit(r); err != nil {
			return err
		}
	}
	if r.Costs != nil && r.limit != nil {
		if r.N, err = r.limit.cost(r.Costs); err != nil {
			return err
		}
	}
	switch {
	case r.limit == nil:
		return unknown(r.Name)
	case r.N < 1:
		return unitsError(r.Name, r.N)
	case r.Reserve && r.limit.inline:
		return fmt.Errorf("limit %q: %w, and neither can one that comes with the request", r.limit.policy.Name, ErrCannotReserve)
	case r.Reserve && !r.limit.canReserve():
		return fmt.Errorf("limit %q: %w", r.limit.policy.Name, ErrCannotReserve)
	}
	return nil
}

// ownLimit compiles the limit that comes with r.
func (l *Limiter) ownLimit(r *Request) (*limit, error) {
	name := strings.Clone(r.Name)
	switch {
	case name == "":
		return nil, errors.New("a request with its own Limit needs a Name for it")
	case l.named[name] != nil:
		return nil, fmt.Errorf("limit %q is in Config.Limits; remove Request.Limit, or choose another Name", name)
	}
	m, err := r.Limit.inline(l.domain, name)
	if err != nil {
		return nil, fmt.Errorf("limit %q: %w", name, err)
	}
	return m, nil
}

// canReserve reports whether a request for m may be allowed with a wait.
func (m *limit) canReserve() bool {
	return m.policy.Limit.CanReserve() || m.policy.Limit.Kind == algorithms.LeakyBucket
}

// The functions that make errors copy names, so that the arguments of calls need not be allocated on the
// heap.

func unknown(name string) error { return fmt.Errorf("%w: %q", ErrUnknown, strings.Clone(name)) }

func unitsError(name string, n int64) error {
	return fmt.Errorf("limit %q: %w, is %d", strings.Clone(name), ErrUnits, n)
}
