package ratelimit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/delay"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Reservation stands for units that were consumed ahead of the work that needs them. Start the work when
// Delay has passed, and pass the real cost to Limiter.Settle.
//
// A Reservation is immutable. Any Limiter with the same Secret and domain can settle it after MarshalText
// and UnmarshalText, and so can a sidecar with the same secret, over its HTTP API or through its proxy. The
// text contains the key of the bucket and is not encrypted.
type Reservation struct {
	data limiter.Reserved // one part if this process made the reservation
	text string           // the text given to UnmarshalText; "" if this process made the reservation
	keys *reservation.Keys
	made time.Time // when this process made the reservation; zero after UnmarshalText
}

// part returns the reserved part. If there are several limits, it is that of the first.
func (r *Reservation) part() *limiter.ReservedPart {
	if len(r.data.Parts) == 0 {
		return &limiter.ReservedPart{}
	}
	return &r.data.Parts[0]
}

// Name returns the name of the limit. It is "" for the zero Reservation, and for a reservation made for a
// proxy.
func (r *Reservation) Name() string { return r.part().Name }

// N returns the number of reserved units. If there are several limits, it is that of the first.
func (r *Reservation) N() int64 { return r.part().Count }

// Due returns the time at which the units are available, by the clock of the Store. For the zero Reservation
// it is the start of 1970.
func (r *Reservation) Due() time.Time { return time.UnixMicro(int64(r.part().Due())) }

// Expires returns the time until which the Reservation can be settled: an hour after Due. Config.Clock decides
// whether it has passed. A Reservation made for a proxy does not expire.
func (r *Reservation) Expires() time.Time {
	return time.UnixMicro(int64(r.part().Due() + limiter.Within))
}

// Delay returns the time until the units are available, and 0 once they are. It becomes shorter as time passes.
// In the process that made the Reservation, it does not depend on the Store's clock. After UnmarshalText it is
// the difference between Due and this computer's clock.
func (r *Reservation) Delay() time.Duration {
	if r.made.IsZero() {
		return max(0, time.Until(r.Due()))
	}
	return max(0, span(r.part().Wait)-time.Since(r.made))
}

// Wait waits until the units are available. If ctx ends before, Wait returns the error of ctx, and the
// units stay reserved. To return them, call Limiter.Settle with a cost of 0.
func (r *Reservation) Wait(ctx context.Context) error { return sleep(ctx, r.Delay()) }

// MarshalText implements encoding.TextMarshaler. The text has only characters that are safe in URLs and headers.
// It has about 100 characters and four for every three bytes of the key. The error is ErrReservation for the zero
// Reservation, and for a text that would have more than 48 KiB. With a key of at most 16 KiB the text is shorter.
func (r Reservation) MarshalText() ([]byte, error) {
	switch {
	case r.text != "":
		return []byte(r.text), nil
	case r.keys == nil:
		return nil, fmt.Errorf("marshal a zero Reservation: %w", ErrReservation)
	}
	text := r.keys.Append(nil, &r.data)
	if len(text) == 0 {
		return nil, fmt.Errorf("marshal a Reservation: %w: with this key, its text would have more than 48 KiB", ErrReservation)
	}
	return text, nil
}

// UnmarshalText implements encoding.TextUnmarshaler. The error is ErrReservation if text was not made by
// MarshalText. Only Settle verifies the signature. The text "none", which sidecars return for a request that
// reserved nothing, is valid: Settle then changes nothing.
func (r *Reservation) UnmarshalText(text []byte) error {
	next := Reservation{text: string(text)}
	if next.text != limiter.None && reservation.Decode(next.text, &next.data) != nil {
		return ErrReservation
	}
	*r = next
	return nil
}

// Reserve is ReserveN for one unit.
func (l *Limiter) Reserve(ctx context.Context, name string, key ...string) (Reservation, error) {
	return l.ReserveN(ctx, 1, name, key...)
}

// ReserveN consumes n units now or for later: Delay of the Reservation is the time until they are
// available.
//
// The error is a DeniedError if too many units are reserved already or if the delay would exceed
// Config.MaxWait. It can also be ErrNeverFits, ErrCannotReserve, ErrUnits, ErrUnknown, or an error of the
// Store.
func (l *Limiter) ReserveN(ctx context.Context, n int64, name string, key ...string) (Reservation, error) {
	r := Request{Name: name, Key: key, N: n, Reserve: true}
	if err := l.reserve(ctx, &r, l.maxWait); err != nil {
		return Reservation{}, err
	}
	return r.Reservation, nil
}

// reserve decides r. It denies r if the wait would exceed maxWait; 0 means no bound.
func (l *Limiter) reserve(ctx context.Context, r *Request, maxWait time.Duration) error {
	one := [1]Request{*r}
	err := l.all(ctx, one[:], maxWait)
	*r = one[0]
	return err
}

// undo refunds the units of r, which was allowed, to the bucket that paid, less the units that have flowed in since.
func (l *Limiter) undo(ctx context.Context, r *Request) error {
	if r.cost == 0 { // the payer was charged for another request of the call
		return nil
	}
	m := r.limit
	if r.payer != nil {
		m = r.payer
	}
	_, err := l.charge(ctx, m, r.Key, algorithms.Charge{Cost: -r.cost, ChargedAt: r.at})
	return err
}

// Wait is WaitN for one unit.
func (l *Limiter) Wait(ctx context.Context, name string, key ...string) error {
	return l.WaitN(ctx, 1, name, key...)
}

// WaitN waits until n units are available and consumes them.
//
// It returns a DeniedError at once if the wait would end after the deadline of ctx or exceed Config.MaxWait, or if too
// many units are reserved already. If ctx is canceled during the wait, WaitN refunds the units and returns the error
// of ctx. Other errors are ErrNeverFits, ErrUnits, ErrUnknown, or one of the Store's.
//
// For token buckets, fixed windows and leaky buckets, waiting calls are served in the order of their arrival.
// For other limits, and for a token bucket with Guaranteed, WaitN tries again after each RetryAfter, so another
// call can be served first.
func (l *Limiter) WaitN(ctx context.Context, n int64, name string, key ...string) error {
	r := Request{Name: name, Key: key, N: n}
	if err := l.find(&r); err != nil {
		return err
	}
	if !r.limit.canReserve() {
		return l.retry(ctx, &r)
	}
	r.Reserve = true
	if err := l.reserve(ctx, &r, l.longestWait(ctx)); err != nil {
		return err
	}
	if err := r.Reservation.Wait(ctx); err != nil {
		return errors.Join(err, l.undo(context.WithoutCancel(ctx), &r))
	}
	return nil
}

// retry tries r again after each RetryAfter. Config.MaxWait bounds the sum of the waits.
func (l *Limiter) retry(ctx context.Context, r *Request) error {
	var waited time.Duration
	for {
		result, err := l.AllowN(ctx, r.N, r.Name, r.Key...)
		if !errors.Is(err, ErrDenied) {
			return err
		}
		longest := l.longestWait(ctx)
		if longest > 0 && result.RetryAfter > longest || l.maxWait > 0 && result.RetryAfter > l.maxWait-waited {
			return &DeniedError{result}
		}
		waited += result.RetryAfter
		if err := sleep(ctx, result.RetryAfter); err != nil {
			return err
		}
	}
}

// longestWait returns the longest wait that ctx and the configuration allow. 0 means no bound.
func (l *Limiter) longestWait(ctx context.Context) time.Duration {
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

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	return delay.For(ctx, d)
}

// reservation returns the Reservation of n units of m, which d has allowed. If id is zero, it draws a random one.
func (l *Limiter) reservation(m *limit, values []string, n int64, d *backend.Decision, id [16]byte) Reservation {
	made := Reservation{keys: l.keys, made: time.Now()}
	made.data.ID, made.data.Domain = id, limiter.PrefixNumber(l.domain)
	if made.data.ID == ([16]byte{}) {
		_, _ = rand.Read(made.data.ID[:]) // never fails
	}
	by := limiter.ByName{Name: m.policy.Name, Values: clone(values), Wait: d.Wait}
	made.data.Parts = []limiter.ReservedPart{limiter.PartOf(&m.policy, by, n, d.At)}
	return made
}

// Settle corrects a Reservation to the real cost n, and charges or refunds the difference. n may be 0, and
// may exceed the reserved units. A negative n is an error.
//
// A refund is reduced by the units that have flowed in since the reservation, because without the
// reservation the bucket might have overflowed. Once the fixed window of the reservation has ended, nothing
// is refunded. A limit with Settles subtracts no inflow: it refunds what would be left if the cost had been n
// from the start. A bucket with many charges and refunds since the reservation may get back less than that.
//
// A Reservation is settled once. Until it expires, a repeated call with the same n returns the same result,
// and another n is ErrReused. If the difference is denied (ErrDenied), the call can be tried again.
// ErrReservation means that the reservation belongs to another Secret or domain, ErrExpired that it is too
// old, and ErrCannotReserve that its limit is a leaky bucket.
//
// A Reservation made by a sidecar can have several limits. Settle then settles each of them to n. It returns the
// most serious error with the Result of its limit: an error of the Store, then ErrNeverFits, then ErrDenied.
// Without an error, it returns the Result of the first limit.
func (l *Limiter) Settle(ctx context.Context, r Reservation, n int64) (Result, error) {
	name := r.Name()
	if n < 0 {
		return Result{}, fmt.Errorf("settle limit %q: the cost must not be negative, but is %d", name, n)
	}
	text, err := r.MarshalText()
	var data limiter.Reserved
	if string(text) == limiter.None {
		return Result{Allowed: true}, nil
	}
	if err != nil || !l.keys.Open(string(text), &data) || data.Domain != limiter.PrefixNumber(l.domain) {
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

func (l *Limiter) settled(c *limiter.Call) (result Result, worst error) {
	for i := range c.Results {
		d := &c.Results[i].Decision
		one, err := l.named[c.Results[i].Policy.Name].outcome(d)
		if d.Err != nil {
			err = fmt.Errorf("settle %w", err)
		}
		if i == 0 || moreSevere(worst, err) != worst { //nolint:errorlint // one of the two
			result, worst = one, moreSevere(worst, err)
		}
	}
	return result, worst
}

var errEmptyID = errors.New("AllowOnce needs an id that is different for each call, such as the id of the request; it is empty")

// Remembered is how long the Store keeps the result of AllowOnce, unless RememberFor states another time.
const Remembered = 10 * time.Minute

// MaxRemembered is the longest time of RememberFor.
const MaxRemembered = time.Duration(limiter.MaxRemember) * time.Microsecond

// OnceOption is an option of AllowOnce.
type OnceOption struct{ remember time.Duration }

// RememberFor keeps the result of AllowOnce for d, from a second to MaxRemembered. Each result counts like a bucket
// towards the bounds of the Store. If calls with the same id state different times, the first one applies.
func RememberFor(d time.Duration) OnceOption { return OnceOption{remember: d} }

// AllowOnce is AllowAll for a call that may be repeated because its answer was lost. Config.MaxWait does not
// apply.
//
// The id is an idempotency key: calls with the same id and requests consume units once, and return the
// result of the first call for as long as Remembered, or the time of the option RememberFor. After that time the same
// call consumes units again. The id must not be empty, and must be different for each
// call of the same Config.Domain, such as a random UUID. A denied call is decided again when it is repeated, unless
// one of its limits has Overdraw, which consumes units even for denied requests.
//
// If id was used for another call, the error is ErrReused. If the first call is in progress, or its outcome
// is unknown, the error is ErrPending.
func (l *Limiter) AllowOnce(ctx context.Context, id string, requests []Request, options ...OnceOption) error {
	if id == "" {
		return errEmptyID
	}
	once := limiter.IdempotencyKey{ID: "call " + id, Lifetime: algorithms.Micros(Remembered / time.Microsecond)}
	for _, o := range options {
		if o.remember < time.Second || o.remember > MaxRemembered {
			return fmt.Errorf("AllowOnce: RememberFor needs a time from 1s to %v, but has %v", MaxRemembered, o.remember)
		}
		once.Lifetime = algorithms.Micros(o.remember / time.Microsecond)
	}
	for i := range requests {
		if err := l.find(&requests[i]); err != nil {
			return err
		}
	}
	if len(requests) == 0 {
		return nil
	}
	return l.call(ctx, once, requests, 0)
}

// call decides requests whose limits find has set. If once has an ID, it is their idempotency key. maxWait is that of all.
func (l *Limiter) call(ctx context.Context, once limiter.IdempotencyKey, requests []Request, maxWait time.Duration) error {
	c := limiter.Call{Request: limiter.Request{Domain: l.domain, IdempotencyKey: once}}
	for i := range requests {
		r, m := &requests[i], requests[i].limit
		named := limiter.NamedCharge{
			Name: m.policy.Name, Key: clone(r.Key), Count: r.N, Reserve: r.Reserve && m.policy.Limit.CanReserve(), MaxWait: r.bound(maxWait),
		}
		if m.inline {
			inline := m.policy // copied, so that the caller's key stays on the stack (see clone)
			named.Inline = &inline
		}
		c.Limits = append(c.Limits, named)
	}
	if err := l.limiter.Check(ctx, &c); err != nil {
		return err
	}
	var worst error
	for i := range requests {
		r, of := &requests[i], &c.Results[i]
		m, result, err := l.outcomeOf(requests[i].limit, of)
		r.Result, worst = result, moreSevere(worst, m.naming(err))
		if r.cost, r.at, r.payer = of.Cost, of.Decision.At, nil; of.For != nil {
			r.payer = l.named[of.Policy.Name]
		}
		if !r.Reserve || err != nil || of.For != nil && of.Cost == 0 { // the last condition: the payer was charged for another request of the call
			continue
		}
		var number [16]byte
		if id, ok := strings.CutPrefix(once.ID, "call "); ok {
			number = limiter.IdempotencyID("reservation", l.domain, id, strconv.Itoa(i))
		}
		r.Reservation = l.reservation(m, r.Key, of.Cost, &of.Decision, number)
	}
	return conclude(requests, worst)
}
