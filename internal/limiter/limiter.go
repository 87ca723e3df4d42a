// Package limiter answers requests: it plans what to charge, lets a store charge it, and folds
// the store's decisions into a verdict. Planning and folding are functions of the request, the
// configuration and the decisions; the store is the only effect.
package limiter

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// ErrNoConfig is returned until a first configuration, or that of a domain, has been loaded; see
// Config.NoConfig and Domain.Broken.
var ErrNoConfig = errors.New("no rate limit configuration loaded")

// Observer receives every answered Call, and every configuration before it is used.
type Observer interface {
	Swapped(*Snapshot)
	Observe(*Call)
}

// Config of a Limiter; the zero Config has none of these.
type Config struct {
	Observer Observer
	// Local has this process's own buckets, for limits that are answered from them while the store cannot decide.
	// It answers before Submit returns.
	Local backend.Store
	Modes Modes
	// NoConfig answers requests for descriptors before there is a configuration, as a limit with that
	// on_backend_failure would while the store is away. Local denies: no bucket is known. nil: ErrNoConfig.
	NoConfig *descriptors.OnFailure
	// IDs encodes reservations that proxies settle; nil: they cannot be settled, and all ids are forged.
	IDs IDs
	// Now is the clock by which such reservations become late. IDs needs it.
	Now func() algorithms.Micros
}

// Modes change what denials mean, whatever the configuration says.
type Modes struct {
	// Shadow allows every request. The answer to each descriptor stays.
	Shadow bool
	// Quota makes a quota limit of every limit: a request is denied only where each of its descriptors
	// is, those that meet no limit included.
	Quota bool
}

// Limiter answers Calls by the current Snapshot.
type Limiter struct {
	store   backend.Store
	config  Config
	current atomic.Pointer[inUse] // replaced whole, under mu; never edited

	mu  sync.Mutex
	set *adjust.Set              // the adjustments; guarded by mu, nil: none
	now func() algorithms.Micros // the clock that they expire by; guarded by mu
	was Adjusted                 // what became of set; guarded by mu
}

// New makes a Limiter that has no Snapshot yet.
func New(store backend.Store, c Config) *Limiter { return &Limiter{store: store, config: c} }

// Swap makes s the configuration of all Calls that start from now on.
func (l *Limiter) Swap(s *Snapshot) {
	if l.config.Observer != nil {
		l.config.Observer.Swapped(s)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.use(s)
}

// Current is the configuration in use; nil before the first.
func (l *Limiter) Current() *Snapshot {
	if u := l.current.Load(); u != nil {
		return u.snapshot
	}
	return nil
}

// Check answers c.Request in c.Verdict. An error means that the request itself is wrong: it names
// a limit that is not there, or there is no configuration; or it is backend.ErrReused or ErrPending,
// of an ID that it is taken once under. A store that fails is a Verdict.
func (l *Limiter) Check(ctx context.Context, c *Call) error {
	planned, err := l.plan(c, nil)
	if !planned {
		return err
	}
	if n := len(c.charges); n > 0 {
		c.decisions = slices.Grow(c.decisions[:0], n)[:n]
		clear(c.decisions)
		mistaken := c.neverFits()
		backend.Take(ctx, l.store, c.charges, c.decisions)
		if mistaken {
			c.answerMistake()
		}
		if err := c.refused(); err != nil {
			return err
		}
	}
	l.answer(c)
	if !c.Failed || !errors.Is(ctx.Err(), context.Canceled) {
		l.observe(c)
	}
	return nil
}

// plan makes the charges of c. Where it does not, c is answered, or err says why it is not. last, which may
// be nil, was planned before c.
func (l *Limiter) plan(c, last *Call) (planned bool, err error) {
	u := l.current.Load() // once: a request sees one configuration
	if u == nil {
		return false, l.withoutConfig(c, l.config.NoConfig)
	}
	c.modes, c.adjusted, c.ids = l.config.Modes, u.adjusted, l.config.IDs
	if err := c.plan(u.snapshot, last); err != nil {
		return false, err
	}
	if d := c.Verdict.Domain; d != nil && d.Broken {
		return false, l.withoutConfig(c, &d.OnFailure)
	}
	if c.done > 0 && l.config.Now != nil {
		c.planSettlements(l.config.Now())
	}
	return true, nil
}

// answer answers c from its decisions. The caller observes it, unless it has Failed and was canceled: nobody gets
// what the failure policy answers then.
func (l *Limiter) answer(c *Call) {
	if len(c.charges) > 0 {
		c.standIn(l.config.Local)
	}
	c.fold()
}

// observe reports c to the observer, unless it was reported before or belongs to an operator.
func (l *Limiter) observe(c *Call) {
	if l.config.Observer != nil && !c.Replayed && !c.Inspect {
		l.config.Observer.Observe(c)
	}
}

// withoutConfig answers c where there is no configuration for it yet. A request for limits by name gets the
// error: its client knows what an error means, while a proxy allows the request.
func (l *Limiter) withoutConfig(c *Call, answer *descriptors.OnFailure) error {
	if answer == nil || *answer == descriptors.Error || len(c.Limits) > 0 {
		return ErrNoConfig
	}
	denied := *answer != descriptors.Allow
	for range c.Descriptors {
		c.Statuses = append(c.Statuses, Status{Result: -1, Denied: denied})
	}
	c.Failed, c.Denied, c.Spared = true, denied && !l.config.Modes.Shadow, denied && l.config.Modes.Shadow
	l.observe(c)
	return nil
}
