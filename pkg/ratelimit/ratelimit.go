// Package ratelimit limits requests inside a Go program.
//
// A Limiter has named limits and keeps their buckets in a Store: in memory, or in Redis, where several processes share
// them. A Limiter with the domain, the limits and the Redis server of a sidecar charges the buckets of the sidecar.
//
//	limiter, err := ratelimit.New(ratelimit.Config{
//		Store:  memory.New(memory.Config{}),
//		Limits: ratelimit.Limits{"send_message": ratelimit.TokenBucket(10, time.Minute)},
//	})
//	…
//	result, err := limiter.Allow(ctx, "send_message", "bob")
//	switch {
//	case errors.Is(err, ratelimit.ErrDenied):
//		// try again after result.RetryAfter
//	case err != nil:
//		// the Store could not decide: deny, unless availability matters more than the limit
//	}
//
// A key identifies a bucket of a limit: one value or several, such as a user and a path. Values may be any bytes. A limit
// without a key has one bucket.
//
// The deadline of a ctx is the time by which the Store must decide. A ctx that is canceled before the call has
// the same effect as a deadline that has passed: the Redis store sends nothing and returns ErrUnavailable, but
// the memory store still decides. A ctx that is canceled during the call ends only Wait, WaitN and Reservation.Wait.
//
// A Limiter logs nothing and starts no goroutine. It is safe for concurrent use. Package httplimit has middleware for
// net/http, package grpclimit interceptors for gRPC, and package limitsfile reads limits from YAML files.
package ratelimit

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

var (
	// ErrDenied means that a limit was reached. Nothing was consumed, except by limits with Overdraw.
	// Result.RetryAfter is the time until the call can be repeated.
	ErrDenied = errors.New("the rate limit was reached")
	// ErrNeverFits means that the request needs more units than the limit can ever supply: more than Capacity,
	// or for reservations and Wait more than Capacity plus MaxReserved. It also means that a reservation would have
	// to wait longer than Config.MaxWait even at the start of a window or with a full bucket. Nothing was consumed, and
	// trying again is useless. It is not an ErrDenied.
	ErrNeverFits = errors.New("the request needs more units than the rate limit can ever hold")
	// ErrUnknown means that there is no limit with this name.
	ErrUnknown = errors.New("no such limit")
	// ErrUnits means that a number of units is below 1, or for Peek below 0.
	ErrUnits = errors.New("the number of units must be at least 1")
	// ErrCannotReserve means that the limit does not support reservations. Token buckets without Guaranteed, fixed
	// windows and leaky buckets do, but not as Request.Limit. Settle does not support leaky buckets.
	ErrCannotReserve = errors.New("a limit of this algorithm cannot be reserved")
	// ErrReservation means that a Reservation is invalid: it was made with another Secret, or it belongs to
	// another domain.
	ErrReservation = errors.New("not a reservation of this limiter")
	// ErrExpired means that a Reservation is too old to be settled, or that its limit has another algorithm or number of
	// shards now.
	ErrExpired = errors.New("the reservation has expired")

	// ErrTooLarge means that a call has more limits than the Store can charge together. Nothing was consumed.
	ErrTooLarge = backend.ErrTooLarge
	// ErrUnavailable means that the Store could not decide, for example because a server did not answer in time. Units
	// may have been consumed.
	ErrUnavailable = backend.ErrUnavailable
	// ErrFull means that a new bucket was needed, but the Store has no room. Nothing was consumed.
	ErrFull = backend.ErrFull
	// ErrReused means that an id was used for a different call before. Nothing was consumed.
	ErrReused = backend.ErrReused
	// ErrPending means that a call with the same id is in progress, or that its outcome is unknown. Nothing was
	// consumed by this call.
	ErrPending = backend.ErrPending
)

// DeniedError is the form of ErrDenied that AllowAll, AllowOnce, Reserve, ReserveN, Wait and WaitN return,
// because they return no Result.
type DeniedError struct {
	// Result has RetryAfter: the time until the same call can succeed. If several limits deny, it is the
	// Result of the one that denies for the longest time.
	Result Result
}

func (e *DeniedError) Error() string {
	return fmt.Sprintf("%v; try again after %v", ErrDenied, e.Result.RetryAfter)
}

// Is reports whether target is ErrDenied.
func (e *DeniedError) Is(target error) bool { return target == ErrDenied }

// Config configures a Limiter.
type Config struct {
	// Store keeps the buckets. The Limiter does not close it.
	Store backend.Store
	// Domain separates the limits of this program from those of others in the same Store. It may be empty.
	Domain string
	// Limits has the limits by name.
	Limits Limits
	// Secret signs reservations. Limiters and sidecars with the same secret can settle each other's
	// reservations. The secret of a sidecar is the first line of --settle-key-file, or else its API token. A
	// sidecar without either has a random secret. Without a secret, a Limiter accepts forged reservations.
	Secret string
	// FormerSecret, if not empty, is accepted too, but does not sign. To replace a secret, set the old one
	// as FormerSecret for an hour plus the longest Delay of your reservations.
	FormerSecret string
	// MaxWait bounds how long Reserve, Wait, and AllowAll with Request.Reserve may have to wait. Requests that
	// would have to wait longer are denied. 0 means no bound. It does not apply to AllowOnce, nor to
	// requests of a leaky bucket without Reserve, which its queue bounds.
	MaxWait time.Duration
	// Clock returns the time that decides whether reservations have expired; nil means time.Now. The Store
	// has a clock of its own for decisions.
	Clock func() time.Time
}

// repeatTimeout bounds the wait of the Store until it sends the return of a slot.
const repeatTimeout = time.Second

// Limiter decides requests for a set of limits. It is safe for concurrent use.
type Limiter struct {
	store   backend.Store
	domain  string
	keys    *reservation.Keys
	maxWait time.Duration
	named   map[string]*limit // never modified
	limiter *limiter.Limiter  // for what direct cannot do: ids, payers, settlements and resets
	direct  sync.Pool         // of *limiter.Direct
	repeats *stores.Undos     // of returns of slots
}

type limit struct {
	policy limiter.Policy
	units  int64         // Result.Limit
	window time.Duration // Result.Window
	inline bool          // the limit came with a request
}

// New makes a Limiter. Its error lists all mistakes in c.
func New(c Config) (*Limiter, error) {
	var problems []error
	if c.Store == nil {
		problems = append(problems, errors.New("ratelimit: Config.Store is missing; use memory.New(memory.Config{}) to keep buckets in this process"))
	}
	if c.MaxWait < 0 {
		problems = append(problems, fmt.Errorf("ratelimit: Config.MaxWait must not be negative, but is %v", c.MaxWait))
	}
	l := &Limiter{store: c.Store, domain: c.Domain, keys: c.keys(), maxWait: c.MaxWait, named: make(map[string]*limit, len(c.Limits))}
	l.direct.New = func() any { return new(limiter.Direct) }
	domain := &limiter.Domain{Name: c.Domain, Tree: &limiter.Tree{}, Named: make(map[string]*limiter.Policy, len(c.Limits)), Settling: map[uint64]*limiter.Policy{}}
	snapshot := &limiter.Snapshot{Domains: map[string]*limiter.Domain{c.Domain: domain}}
	for _, name := range slices.Sorted(maps.Keys(c.Limits)) {
		one, err := c.Limits[name].named(c.Domain, name)
		if name == "" {
			err = errors.Join(errors.New("its name must not be empty"), err)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("ratelimit: limit %q: %w", name, err))
			continue
		}
		one.policy.Index = len(snapshot.Policies)
		l.named[name], domain.Named[name] = one, &one.policy
		if one.policy.Limit.Settles || one.acquires() {
			domain.Settling[limiter.PrefixNumber(one.policy.Prefix)] = &one.policy
		}
		snapshot.Policies = append(snapshot.Policies, &one.policy)
	}
	problems = append(problems, bindPayers(l.named)...)
	if problems != nil {
		return nil, errors.Join(problems...)
	}
	l.repeats = stores.NewUndos(nil, repeatTimeout)
	l.limiter = limiter.New(c.Store, limiter.Config{IDs: l.keys, Now: c.now, Repeater: l.repeats})
	l.limiter.Swap(snapshot)
	return l, nil
}

func (c *Config) keys() *reservation.Keys {
	secrets := []string{c.Secret}
	if c.FormerSecret != "" {
		secrets = append(secrets, c.FormerSecret)
	}
	return reservation.NewKeys(func() []string { return secrets })
}

func (c *Config) now() algorithms.Micros {
	if c.Clock == nil {
		return algorithms.Micros(time.Now().UnixMicro())
	}
	return algorithms.Micros(c.Clock().UnixMicro())
}

// Has reports whether there is a limit with this name.
func (l *Limiter) Has(name string) bool { return l.named[name] != nil }

// Result describes one limit after a call.
type Result struct {
	// Allowed reports whether this limit allows the request. In a call with several limits it can be true
	// although another limit denied the request.
	Allowed bool
	// Limit is the most units that the bucket can hold. Window is the time in which as many units flow in;
	// it is 0 if that time is not a whole number of seconds. They are the quota and the window of RateLimit
	// headers.
	Limit  int64
	Window time.Duration
	// Remaining is the number of units left. It is 0 for a bucket in debt.
	Remaining int64
	// RetryAfter is set for a denial. It is the exact time until this limit allows the same request, if no other
	// request comes first.
	RetryAfter time.Duration
	// ResetAfter is the time until the bucket is full again. For a fixed window it is at least the time until
	// the next window starts.
	ResetAfter time.Duration
	// Wait is the time until reserved units are available, or until the turn in a leaky bucket. It is 0 if this
	// limit denies.
	Wait time.Duration
	// Payer is the name of the limit that was charged in place of the requested one, which did not allow the
	// units; "" if there is none. If Payer is set, the other fields describe the payer. Only limits that
	// package limitsfile has loaded can have a payer: the value of "then" in the file.
	Payer string
}

func (m *limit) result(d *algorithms.Decision) Result {
	return Result{
		Allowed: d.Allowed, Limit: m.units, Window: m.window, Remaining: d.Remaining,
		RetryAfter: span(d.RetryAfter), ResetAfter: span(d.ResetAfter), Wait: span(d.Wait),
	}
}

// span converts d to a time.Duration. A time that does not fit becomes the longest Duration.
func span(d algorithms.Micros) time.Duration {
	const longest = 1<<63 - 1
	return time.Duration(min(d, longest/1000)) * time.Microsecond
}
