package ratelimit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Reservation is units that were consumed ahead of the work that needs them. Start the work when Delay has passed, and
// pass the real cost to Limiter.Settle. A Reservation is immutable. MarshalText makes a text from which any Limiter with
// the same Secret and domain can settle it, and a sidecar with the same key over its HTTP API or through its proxy. The
// text contains the key of the bucket and is not encrypted.
type Reservation struct {
	data limiter.Reserved // one part if this process made it
	text string           // as unmarshaled; "" if this process made it
	keys *reservation.Keys
	made time.Time // in this process; zero if unmarshaled
}

// part returns what r reserved, of the first limit if it has several.
func (r *Reservation) part() *limiter.ReservedPart {
	if len(r.data.Parts) == 0 {
		return &limiter.ReservedPart{}
	}
	return &r.data.Parts[0]
}

// Name returns the name of the limit; "" for the zero Reservation, and for one that a proxy made.
func (r *Reservation) Name() string { return r.part().Name }

// N returns the number of reserved units.
func (r *Reservation) N() int64 { return r.part().Count }

// Due returns the time at which the units are available, by the clock of the Store.
func (r *Reservation) Due() time.Time { return time.UnixMicro(int64(r.part().Due())) }

// Expires returns the time until which the Reservation can be settled: an hour after Due.
func (r *Reservation) Expires() time.Time {
	return time.UnixMicro(int64(r.part().Due() + limiter.Within))
}

// Delay returns the time until the units are available; 0 if they are.
func (r *Reservation) Delay() time.Duration {
	if r.made.IsZero() {
		return max(0, time.Until(r.Due()))
	}
	return max(0, span(r.part().Wait)-time.Since(r.made))
}

// Wait waits until the units are available. If ctx ends before, it returns the error of ctx, and the units stay reserved:
// call Limiter.Settle with a cost of 0 to return them.
func (r *Reservation) Wait(ctx context.Context) error { return sleep(ctx, r.Delay()) }

// MarshalText implements encoding.TextMarshaler. The text has only characters that are safe in URLs and headers.
func (r Reservation) MarshalText() ([]byte, error) {
	switch {
	case r.text != "":
		return []byte(r.text), nil
	case r.keys == nil:
		return nil, fmt.Errorf("marshal a zero Reservation: %w", ErrReservation)
	}
	text := r.keys.Append(nil, &r.data)
	if len(text) == 0 {
		return nil, fmt.Errorf("marshal a Reservation: %w: its key has more than 16 KiB", ErrReservation)
	}
	return text, nil
}

// UnmarshalText implements encoding.TextUnmarshaler. Settle verifies the signature.
func (r *Reservation) UnmarshalText(text []byte) error {
	next := Reservation{text: string(text)}
	if reservation.Decode(next.text, &next.data) != nil {
		return ErrReservation
	}
	*r = next
	return nil
}

// Reserve is ReserveN for one unit.
func (l *Limiter) Reserve(ctx context.Context, name string, key ...string) (Reservation, error) {
	return l.ReserveN(ctx, 1, name, key...)
}

// ReserveN consumes n units now or for later: Delay of the Reservation says when they are available. The error is a
// DeniedError if too many units are reserved already or if the delay would exceed Config.MaxWait; ErrNeverFits,
// ErrCannotReserve, ErrUnits, ErrUnknown, or one of the Store's.
func (l *Limiter) ReserveN(ctx context.Context, n int64, name string, key ...string) (Reservation, error) {
	r := Request{Name: name, Key: key, N: n, Reserve: true}
	if err := l.reserve(ctx, &r, l.maxWait); err != nil {
		return Reservation{}, err
	}
	return r.Reservation, nil
}

// reserve decides r, and denies if the wait exceeds longest; 0 means no bound.
func (l *Limiter) reserve(ctx context.Context, r *Request, longest time.Duration) error {
	if err := l.find(r); err != nil {
		return err
	}
	m := r.limit
	if l.maxWait > 0 && m.neverWithin(r.N, l.maxWait) {
		return ErrNeverFits
	}
	if longest > 0 { // a dry run, so that a request which has to wait for too long consumes nothing
		ahead, err := l.one(ctx, r.Name, r.Key, algorithms.Charge{Cost: r.N, Reserve: m.policy.Limit.CanReserve(), DryRun: true})
		if err == nil && ahead.Wait > longest {
			err = tooLate(&ahead, longest)
		}
		if err != nil {
			return withResult(err, &ahead)
		}
	}
	one := [1]Request{*r}
	err := l.AllowAll(ctx, one[:])
	*r = one[0]
	if err == nil && longest > 0 && r.Result.Wait > longest { // others were faster
		undone := l.undo(ctx, m, r)
		return errors.Join(withResult(tooLate(&r.Result, longest), &r.Result), undone)
	}
	return withResult(err, &r.Result)
}

// tooLate makes r the denial of a request that would have to wait for longer than longest.
func tooLate(r *Result, longest time.Duration) error {
	r.Allowed, r.RetryAfter = false, r.Wait-longest
	return ErrDenied
}

// withResult adds the result to an ErrDenied.
func withResult(err error, r *Result) error {
	if errors.Is(err, ErrDenied) {
		return &DeniedError{*r}
	}
	return err
}

// neverWithin reports whether n units take longer than longest to flow in even after the bucket was full. The buckets of
// fixed windows fill at once when the next window starts, so that a request near the end of one waits for a short time.
func (m *limit) neverWithin(n int64, longest time.Duration) bool {
	numbers := m.policy.Limit
	if numbers.Kind != algorithms.TokenBucket || n <= numbers.Capacity || numbers.Rate == 0 {
		return false
	}
	period := float64(numbers.Period())
	const rounding = 1 // us
	return float64(n-numbers.Capacity)*period/float64(numbers.Rate) > float64(longest.Microseconds())+rounding
}

// undo returns the units of r, which was allowed, as far as they have not flowed in since.
func (l *Limiter) undo(ctx context.Context, m *limit, r *Request) error {
	_, err := l.one(ctx, m.policy.Name, r.Key, algorithms.Charge{Cost: -r.N, ChargedAt: r.Reservation.part().At})
	return err
}

// Wait is WaitN for one unit.
func (l *Limiter) Wait(ctx context.Context, name string, key ...string) error {
	return l.WaitN(ctx, 1, name, key...)
}

// WaitN waits until n units are available and consumes them. It returns a DeniedError at once if that would be later than
// the deadline of ctx or than Config.MaxWait. If ctx is canceled while it waits, it returns the units and the error
// of ctx. Waiting requests of limits that support reservations are served in their order.
func (l *Limiter) WaitN(ctx context.Context, n int64, name string, key ...string) error {
	r := Request{Name: name, Key: key, N: n}
	if err := l.find(&r); err != nil {
		return err
	}
	m := r.limit
	if !m.canReserve() {
		return l.retry(ctx, &r)
	}
	r.Reserve = true
	if err := l.reserve(ctx, &r, l.patience(ctx)); err != nil {
		return err
	}
	if err := r.Reservation.Wait(ctx); err != nil {
		return errors.Join(err, l.undo(context.WithoutCancel(ctx), m, &r))
	}
	return nil
}

// retry repeats the charge of r until it is allowed.
func (l *Limiter) retry(ctx context.Context, r *Request) error {
	for {
		result, err := l.AllowN(ctx, r.N, r.Name, r.Key...)
		if !errors.Is(err, ErrDenied) {
			return err
		}
		if longest := l.patience(ctx); longest > 0 && result.RetryAfter > longest {
			return withResult(err, &result)
		}
		if err := sleep(ctx, result.RetryAfter); err != nil {
			return err
		}
	}
}

// patience is the longest wait that ctx and the configuration allow; 0 means no bound.
func (l *Limiter) patience(ctx context.Context) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return l.maxWait
	}
	left := max(1, time.Until(end))
	if l.maxWait > 0 {
		return min(left, l.maxWait)
	}
	return left
}

// sleep waits for d, or until ctx ends, whose error it returns.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reservation makes the Reservation of r, which d has allowed. The zero id means any.
func (l *Limiter) reservation(m *limit, r *Request, d *backend.Decision, id [16]byte) Reservation {
	var key []string
	for _, value := range r.Key {
		key = append(key, strings.Clone(value))
	}
	made := Reservation{keys: l.keys, made: time.Now()}
	made.data.ID, made.data.Domain = id, descriptors.PrefixNumber(l.domain)
	if made.data.ID == ([16]byte{}) {
		_, _ = rand.Read(made.data.ID[:]) // never fails
	}
	by := limiter.ByName{Name: m.policy.Name, Values: key, Wait: d.Wait}
	made.data.Parts = []limiter.ReservedPart{limiter.PartOf(&m.policy, by, r.N, d.At)}
	return made
}

// Settle corrects a Reservation to the real cost n, which may be 0 and more than was reserved. It charges or refunds the
// difference. A refund returns less by the units that have flowed in since the reservation, because the bucket would
// have overflowed without it, and nothing once the fixed window of the reservation has ended. A limit with Settles
// returns exactly what would be left.
//
// A Reservation is settled once: a repeated call with the same n returns the same result, another n is ErrReused. A
// difference that is denied, with ErrDenied, can be tried again. ErrReservation means that the reservation is of another
// Secret or domain, and ErrExpired that it is too old. Of a Reservation with several limits, which other programs can
// make, each limit is settled to n, and the Result is that of the first one that denies, or else the first.
func (l *Limiter) Settle(ctx context.Context, r Reservation, n int64) (Result, error) {
	name := r.Name()
	if n < 0 {
		return Result{}, fmt.Errorf("settle limit %q: the cost must not be negative, is %d", name, n)
	}
	text, err := r.MarshalText()
	var data limiter.Reserved
	if err != nil || !l.keys.Open(string(text), &data) || data.Domain != descriptors.PrefixNumber(l.domain) {
		return Result{}, ErrReservation
	}
	for i := range data.Parts {
		switch part := &data.Parts[i]; {
		case part.Config != "":
			return Result{}, ErrReservation
		case part.Name == "":
		case l.named[part.Name] == nil:
			return Result{}, unknown(part.Name)
		case !l.named[part.Name].policy.Limit.CanReserve():
			return Result{}, fmt.Errorf("settle limit %q: %w", part.Name, ErrCannotReserve)
		}
	}
	var c limiter.Call
	switch err := l.limiter.Settle(ctx, &c, limiter.Settle{Reserved: &data, Real: n}); {
	case errors.Is(err, limiter.ErrExpired):
		return Result{}, fmt.Errorf("settle limit %q: %w", name, ErrExpired)
	case errors.Is(err, limiter.ErrChanged):
		return Result{}, fmt.Errorf("settle limit %q: %w: the limit has another algorithm now", name, ErrExpired)
	case errors.Is(err, ErrReused):
		return Result{}, fmt.Errorf("settle limit %q: it was settled with another cost: %w", name, err)
	case err != nil:
		return Result{}, fmt.Errorf("settle limit %q: %w", name, err)
	}
	return l.settled(&c)
}

// settled returns the result of the settlement c.
func (l *Limiter) settled(c *limiter.Call) (result Result, worst error) {
	for i := range c.Results {
		d := &c.Results[i].Decision
		one, err := l.named[c.Results[i].Policy.Name].outcome(d)
		if d.Err != nil {
			err = fmt.Errorf("settle %w", err)
		}
		if i == 0 || worse(worst, err) != worst { //nolint:errorlint // one of the two
			result, worst = one, worse(worst, err)
		}
	}
	return result, worst
}

// Remembered is how long the Store keeps the result of AllowOnce.
const Remembered = 10 * time.Minute

// AllowOnce is AllowAll for a call that may have to be repeated because its answer was lost. The id is an idempotency
// key: calls with the same id and requests consume units once, and return the result of the first call for as long as
// Remembered. A denial consumes nothing, and is decided again. If id was used for another call, the error is ErrReused. If
// the first call is in progress, or its outcome is unknown, the error is ErrPending.
func (l *Limiter) AllowOnce(ctx context.Context, id string, requests []Request) error {
	if len(requests) == 0 {
		return nil
	}
	c := limiter.Call{Request: limiter.Request{Domain: l.domain}}
	c.IdempotencyKey = limiter.IdempotencyKey{ID: "call " + id, Lifetime: algorithms.Micros(Remembered / time.Microsecond)}
	for i := range requests {
		r := &requests[i]
		if err := l.find(r); err != nil {
			return err
		}
		m := r.limit
		ask := limiter.NamedCharge{Name: r.Name, Key: r.Key, Count: r.N, Reserve: r.Reserve && m.policy.Limit.CanReserve()}
		if m.inline {
			ask.Inline = &m.policy
		}
		c.Limits = append(c.Limits, ask)
	}
	if err := l.limiter.Check(ctx, &c); err != nil {
		return err
	}
	var worst error
	for i := range requests {
		r, m := &requests[i], requests[i].limit
		d := &c.Results[i].Decision
		var err error
		r.Result, err = m.outcome(d)
		worst = worse(worst, err)
		if r.Reserve && err == nil {
			of := limiter.IdempotencyID("reservation", l.domain, id, strconv.Itoa(i), strconv.FormatInt(int64(d.At), 10))
			r.Reservation = l.reservation(m, r, d, of)
		}
	}
	if worst != nil {
		forget(requests)
	}
	return worst
}
