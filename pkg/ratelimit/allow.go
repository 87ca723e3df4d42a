package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Allow consumes one unit. The error is ErrDenied, ErrNeverFits, ErrUnknown, or one of the Store's.
func (l *Limiter) Allow(ctx context.Context, name string, key ...string) (Result, error) {
	return l.one(ctx, name, key, algorithms.Charge{Cost: 1})
}

// AllowN consumes n units, all or none; n must be at least 1. The error is ErrDenied, ErrNeverFits, ErrUnits,
// ErrUnknown, or one of the Store's.
func (l *Limiter) AllowN(ctx context.Context, n int64, name string, key ...string) (Result, error) {
	if n < 1 {
		return Result{}, unitsError(name, n)
	}
	return l.one(ctx, name, key, algorithms.Charge{Cost: n})
}

// Peek returns the result that AllowN would return, and consumes nothing. With n = 0 it returns the state
// of the bucket. The error is that of AllowN. The Result is also valid with ErrNeverFits and ErrDenied. With
// n = 0, ErrDenied means that the bucket is in debt, or blocked by a Penalty. Other requests may consume units
// between Peek and AllowN, so do not use Peek to decide: call AllowN alone.
func (l *Limiter) Peek(ctx context.Context, n int64, name string, key ...string) (Result, error) {
	if n < 0 {
		return Result{}, unitsError(name, n)
	}
	return l.one(ctx, name, key, algorithms.Charge{Cost: n, DryRun: true})
}

// Refund returns n units to a bucket, which never holds more than its capacity; n must be at least 1. The error is
// ErrUnits, ErrUnknown, or one of the Store's. To return units of a particular request exactly, reserve them and use
// Settle.
func (l *Limiter) Refund(ctx context.Context, n int64, name string, key ...string) (Result, error) {
	if n < 1 {
		return Result{}, unitsError(name, n)
	}
	return l.one(ctx, name, key, algorithms.Charge{Cost: -n})
}

// Reset deletes a bucket. The next call finds a new one, with the Initial units. It is not an error if the
// bucket does not exist. The error is ErrUnknown or one of the Store's.
func (l *Limiter) Reset(ctx context.Context, name string, key ...string) error {
	if l.named[name] == nil {
		return unknown(name)
	}
	c := limiter.Call{Request: limiter.Request{Domain: l.domain, Limits: []limiter.NamedCharge{{Name: name, Key: key}}}}
	return l.limiter.Reset(ctx, &c)
}

func (l *Limiter) one(ctx context.Context, name string, key []string, terms algorithms.Charge) (Result, error) {
	m := l.named[name]
	if m == nil {
		return Result{}, unknown(name)
	}
	if m.acquires() && !terms.DryRun {
		return Result{}, mustAcquire(name)
	}
	if terms.Cost > 0 && m.then() != nil {
		return l.oneOrPayer(ctx, m, key, terms)
	}
	return l.charge(ctx, m, key, terms)
}

// charge decides a request for limit m, and never charges a payer.
func (l *Limiter) charge(ctx context.Context, m *limit, key []string, terms algorithms.Charge) (Result, error) {
	d := l.direct.Get().(*limiter.Direct)
	d.Add(&m.policy, key, terms)
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
	// those of a tenant in a database. If the numbers under a Name change, the bucket keeps its consumption.
	// Name must not be in Config.Limits, and such a request cannot Reserve. A request to a sidecar's HTTP API
	// with the same domain, name and key, and a `config` of the same algorithm, charges the same bucket.
	Limit *Limit

	// Result is set by the call.
	Result Result
	// Reservation is set by the call if it reserved units.
	Reservation Reservation

	limit *limit
	// cost is the number of units consumed, and at the time of the charge; undo needs them. payer is the limit that
	// paid in place of limit, or nil.
	cost  int64
	at    algorithms.Micros
	payer *limit
}

// AllowAll consumes units of several limits, all or none, and sets the Result of each request. Requests for
// the same bucket are added up.
//
// If a limit denies, the error is a *DeniedError, and each Result has the decision of its own limit. The time to
// wait is the longest RetryAfter of the limits that deny. If one limit can never hold the units requested,
// the error wraps ErrNeverFits and names the limit. ErrTooLarge means that there are too many requests.
//
// Each request with Reserve gets a Reservation of its own. Pass each to Settle. If one of them would have
// to wait longer than Config.MaxWait, the call is denied.
//
// In a Redis Cluster, limits in different slots are charged in separate steps. If one of them denies, the units
// of the others are consumed for a short time before they are refunded.
func (l *Limiter) AllowAll(ctx context.Context, requests []Request) error {
	return l.all(ctx, requests, l.maxWait)
}

// all does what AllowAll does. It denies the requests if a reservation would have to wait longer than maxWait;
// 0 means no bound.
func (l *Limiter) all(ctx context.Context, requests []Request, maxWait time.Duration) error {
	for i := range requests {
		if err := l.find(&requests[i]); err != nil {
			return err
		}
	}
	if len(requests) == 0 {
		return nil
	}
	return l.decide(ctx, requests, maxWait)
}

// decide sets the results of requests, whose limits find has set. maxWait is that of all.
func (l *Limiter) decide(ctx context.Context, requests []Request, maxWait time.Duration) error {
	d := l.direct.Get().(*limiter.Direct)
	defer l.direct.Put(d)
	defer d.Reset()
	for i := range requests {
		r, m := &requests[i], requests[i].limit
		if m.then() != nil {
			return l.call(ctx, limiter.IdempotencyKey{}, requests, maxWait)
		}
		reserve := r.Reserve && m.policy.Limit.CanReserve()
		d.Add(&m.policy, r.Key, algorithms.Charge{Cost: r.N, Reserve: reserve, MaxWait: r.bound(maxWait)})
	}
	d.Take(ctx, l.store)
	var worst error
	for i := range requests {
		r, m := &requests[i], requests[i].limit
		var err error
		r.Result, err = m.decided(d, i)
		err = m.naming(err)
		worst = moreSevere(worst, err)
		decision, _ := d.Decision(i)
		r.cost, r.at, r.payer = r.N, decision.At, nil
		if r.Reserve && decision.Allowed {
			r.Reservation = l.reservation(m, r.Key, r.N, decision, [16]byte{})
		}
	}
	return conclude(requests, worst)
}

// conclude returns the error of a call with these requests. worst is the most serious error of one of them, or
// nil. If there is an error, conclude removes the reservations from the requests, because nothing stays
// consumed.
func conclude(requests []Request, worst error) error {
	if worst != nil {
		for i := range requests {
			requests[i].Reservation = Reservation{}
		}
	}
	if worst == ErrDenied { //nolint:errorlint // decided returns it unwrapped
		return denied(requests)
	}
	return worst
}

// bound returns the longest wait that r accepts, for algorithms.Charge.MaxWait. maxWait is that of Limiter.all.
func (r *Request) bound(maxWait time.Duration) algorithms.Micros {
	if !r.Reserve || maxWait <= 0 {
		return 0
	}
	return algorithms.Micros(max(1, maxWait.Microseconds()))
}

// denied returns the DeniedError of requests: the result of the limit that denies for the longest time. It
// copies the fields one by one, because otherwise the keys of requests would be allocated on the heap.
func denied(requests []Request) error {
	longest := -1
	for i := range requests {
		r := &requests[i].Result
		if !r.Allowed && (longest < 0 || r.RetryAfter > requests[longest].Result.RetryAfter) {
			longest = i
		}
	}
	r := &requests[longest].Result
	retryAfter := r.RetryAfter
	for i := range requests { // a limit with overdraw may have been charged, and have a retry time, although it allows
		retryAfter = max(retryAfter, requests[i].Result.RetryAfter)
	}
	return &DeniedError{Result{
		Limit: r.Limit, Window: r.Window, Remaining: r.Remaining, RetryAfter: retryAfter,
		ResetAfter: r.ResetAfter, Wait: r.Wait, Payer: strings.Clone(r.Payer),
	}}
}

func (m *limit) naming(err error) error {
	if err == ErrNeverFits { //nolint:errorlint // decided returns it unwrapped
		return fmt.Errorf("limit %q: %w", m.policy.Name, err)
	}
	return err
}

// moreSevere returns the error that takes precedence: first an error of the Store, then ErrNeverFits, then
// ErrDenied.
func moreSevere(a, b error) error {
	rank := func(err error) int {
		switch {
		case err == nil:
			return 0
		case errors.Is(err, ErrDenied):
			return 1
		case errors.Is(err, ErrNeverFits):
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

// find sets the limit of r, and N if r has Costs. It returns an error if r is invalid.
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
	case r.limit.acquires():
		return mustAcquire(r.Name)
	case r.Reserve && r.limit.inline:
		return fmt.Errorf("limit %q: %w, and neither can one that comes with the request", r.limit.policy.Name, ErrCannotReserve)
	case r.Reserve && !r.limit.canReserve():
		return fmt.Errorf("limit %q: %w", r.limit.policy.Name, ErrCannotReserve)
	}
	return nil
}

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
