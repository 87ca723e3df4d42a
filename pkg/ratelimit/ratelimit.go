// Package ratelimit limits inside a Go program: the calls of the sidecar's HTTP API, over a Store in
// process. With the domain and names of a sidecar's configuration and a Store on the same Redis,
// both charge the same buckets.
//
//	limiter, err := ratelimit.New(ratelimit.Config{
//		Store:  memory.New(memory.Config{}),
//		Limits: ratelimit.Limits{"send_message": ratelimit.Per(algorithms.TokenBucket, 10, time.Minute)},
//	})
//	…
//	if err := limiter.Limit(ctx, "send_message", "bob"); err != nil {
//		return err // a *ratelimit.Denied says when to come back
//	}
//
// It logs nothing and starts nothing; a Store may have to be run and closed by its owner.
package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Limits are the numbers of limits, by their names.
type Limits map[string]algorithms.Spec

// Per is a limit of rate units in each period, with everything else at its default. Its other fields
// may be set before it is given to New.
func Per(kind algorithms.Kind, rate int64, period time.Duration) algorithms.Spec {
	return algorithms.Spec{Kind: kind, Rate: rate, Period: algorithms.Micros(period.Microseconds())}
}

// Config of a Limiter.
type Config struct {
	// Store keeps the buckets.
	Store backend.Store
	// Domain sets the limits of this program apart from those of others on the same Store.
	Domain string
	Limits Limits
}

// Limiter answers for a set of limits. It may be used by several goroutines at once.
type Limiter struct {
	domain  string
	named   map[string]*descriptors.Policy // never edited
	limiter *limiter.Limiter
}

var (
	// ErrUnknown: there is no limit of that name.
	ErrUnknown = errors.New("no such limit")
	// ErrCannotReserve: only a token bucket or a fixed window can be reserved, and a place in a leaky
	// bucket.
	ErrCannotReserve = errors.New("a limit of this algorithm cannot be reserved")
)

// New makes a Limiter. The error says which limit has impossible numbers, and why.
func New(c Config) (*Limiter, error) {
	if c.Store == nil {
		return nil, errors.New("ratelimit: there is no Store")
	}
	domain := &limiter.Domain{Name: c.Domain, Tree: &descriptors.Tree{}, Named: make(map[string]*descriptors.Policy, len(c.Limits))}
	snapshot := &limiter.Snapshot{Domains: map[string]*limiter.Domain{c.Domain: domain}}
	for name, spec := range c.Limits {
		limit, err := algorithms.Compile(spec)
		if err != nil {
			return nil, fmt.Errorf("ratelimit: limit %q: %w", name, err)
		}
		p := &descriptors.Policy{
			Index: len(snapshot.Policies), Domain: c.Domain, Name: name, Owner: c.Domain + "/" + name, Limit: &limit,
			Prefix: descriptors.Prefix(c.Domain, "limit", name, limit.Kind),
		}
		domain.Named[name] = p
		snapshot.Policies = append(snapshot.Policies, p)
	}
	l := &Limiter{domain: c.Domain, named: domain.Named, limiter: limiter.New(c.Store, limiter.Config{})}
	l.limiter.Swap(snapshot)
	return l, nil
}

// Ask is what is asked of one limit.
type Ask struct {
	// Name of the limit.
	Name string
	// Key tells its buckets apart; empty: the one without a key.
	Key []string
	// Count is how many units; 0 stands for 1, a negative one gives back.
	Count int64
	// Reserve allows it later rather than not at all: the Answer's Wait says when.
	Reserve bool
}

// Answer is what one limit said to an Ask that was allowed.
type Answer struct {
	// Remaining is how many units are left.
	Remaining int64
	// Wait is when what was reserved is due, or the turn in a leaky bucket is; 0: now.
	Wait time.Duration
	// ResetAfter is when the bucket will be full again.
	ResetAfter time.Duration
	// Reservation is what was reserved, for Settle; zero where nothing was.
	Reservation Reservation
}

// Reservation is what was reserved of one bucket. It may be written down, and settled elsewhere.
type Reservation struct {
	// ID tells it from all others.
	ID [16]byte
	// Name and Key say which bucket it is of, Count how many units were taken.
	Name  string
	Key   []string
	Count int64
	// At is when, by the Store's clock.
	At time.Time
	// Inflow is how fast the bucket refilled then: what a cancellation returns is less by what has flowed in since.
	Inflow algorithms.Inflow
}

// Denied is the error where a limit denied. Nothing was taken, of any limit.
type Denied struct {
	Name string
	Key  []string
	// RetryAfter is when the same call can succeed, exactly; it cannot before.
	RetryAfter time.Duration
	// Never: it cannot succeed at all. It asked for Count, and the limit can give Most at the most.
	Never       bool
	Count, Most int64
}

// Error names the limit. Keys are the users', and are left out.
func (d *Denied) Error() string {
	if d.Never {
		return fmt.Sprintf("limit %q: asks for %d, the most it can ever get is %d", d.Name, d.Count, d.Most)
	}
	return fmt.Sprintf("limit %q: denied for another %v", d.Name, d.RetryAfter)
}

// Limit takes one unit. The error is a *Denied, ErrUnknown, or, where the Store could not answer, one
// of package backend's: whether to go on then is the caller's choice.
func (l *Limiter) Limit(ctx context.Context, name string, key ...string) error {
	_, err := l.All(ctx, Ask{Name: name, Key: key})
	return err
}

// Check tells what Limit would, and takes nothing.
func (l *Limiter) Check(ctx context.Context, name string, key ...string) error {
	_, err := l.take(ctx, []Ask{{Name: name, Key: key}}, true, "")
	return err
}

// Reserve takes count units now or later, and says when they are due. They are paid for: the caller
// does the work then, and asks no more.
func (l *Limiter) Reserve(ctx context.Context, count int64, name string, key ...string) (time.Duration, error) {
	answers, err := l.All(ctx, Ask{Name: name, Key: key, Count: count, Reserve: true})
	if err != nil {
		return 0, err
	}
	return answers[0].Wait, nil
}

// All takes from several limits all or none, and answers each Ask, in their order. Of several that
// denied, the *Denied is the one to wait longest for. (On a Redis Cluster limits in different slots
// may be charged for a moment before what they gave comes back.)
func (l *Limiter) All(ctx context.Context, asks ...Ask) ([]Answer, error) {
	return l.take(ctx, asks, false, "")
}

// Remembered is how long Once and Settle remember what they did.
const Remembered = 10 * time.Minute

// Once is All, for a call that may have to be made again because there was no answer: under the same
// id it takes once, and answers as it did, for as long as it is Remembered. A denial took nothing (but
// of limits with Overdraw), and is decided anew. An id of another call is backend.ErrReused; one that
// is under way, or whose outcome is not known, backend.ErrPending.
func (l *Limiter) Once(ctx context.Context, id string, asks ...Ask) ([]Answer, error) {
	return l.take(ctx, asks, false, id)
}

// Settle says what a Reservation came to: the difference is taken, as a reservation is, or given back
// where the window that it was taken in is not over; a token bucket gets it back less what has flowed in since. It is done once: made again it answers the same
// for as long as it is Remembered (it must not be made again later), with another count it is backend.ErrReused. A *Denied took nothing
// (but of a limit with Overdraw), and can be tried again.
func (l *Limiter) Settle(ctx context.Context, r Reservation, count int64) (Answer, error) {
	if count < 0 {
		return Answer{}, fmt.Errorf("settle limit %q: came to %d; it must be 0 or more", r.Name, count)
	}
	p := l.named[r.Name]
	if p == nil {
		return Answer{}, fmt.Errorf("%w: %q", ErrUnknown, r.Name)
	}
	var c limiter.Call
	of := limiter.Reservation{
		ID: string(r.ID[:]), Domain: l.domain, Name: r.Name, Key: r.Key, Kind: p.Limit.Kind, Shards: len(p.Extra().Shards),
		Count: r.Count, At: algorithms.Micros(r.At.UnixMicro()), Inflow: r.Inflow,
	}
	now := algorithms.Micros(time.Now().UnixMicro())
	if err := l.limiter.Settle(ctx, &c, &of, nil, count, remembered, now); err != nil {
		return Answer{}, fmt.Errorf("settle limit %q: %w", r.Name, err)
	}
	result := &c.Results[0]
	switch d := &result.Decision; {
	case d.Err != nil:
		return Answer{}, fmt.Errorf("settle limit %q: %w", r.Name, d.Err)
	case !d.Allowed:
		return Answer{}, deny(&c, result)
	default:
		return Answer{Remaining: d.Remaining, ResetAfter: span(d.ResetAfter)}, nil
	}
}

// Reset forgets a bucket, so that it is as one never seen.
func (l *Limiter) Reset(ctx context.Context, name string, key ...string) error {
	if l.named[name] == nil {
		return fmt.Errorf("%w: %q", ErrUnknown, name)
	}
	c := limiter.Call{Request: limiter.Request{Domain: l.domain, Limits: []limiter.LimitAsk{{Name: name, Key: key}}}}
	return l.limiter.Reset(ctx, &c)
}
