package adjust

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// ErrConflict is returned for a change that expected another version, because another change was made before it.
var ErrConflict = errors.New("another operator has changed the adjustments meanwhile; list them again, then repeat your change")

// ErrNotFound is returned if no adjustment has the ID.
var ErrNotFound = errors.New("there is no such adjustment; it may have expired")

// Mistake is an error in a proposal. Its text describes to the operator what to change.
type Mistake struct{ Problem string }

func (m *Mistake) Error() string { return m.Problem }

// Keeper keeps the adjustments and their audit, in this process or in Redis.
type Keeper interface {
	// Set returns the newest Set that this process knows. It is never nil.
	Set() *Set
	// Now returns the time of the place where the adjustments are kept. Until that clock has been read, it is the time
	// of this machine.
	Now() algorithms.Micros
	// Change makes the change o, stores it together with its Entry in the audit, and returns the Entry. The errors
	// are those of Operation.Entry, and failures of the place.
	Change(ctx context.Context, o Operation) (*Entry, error)
	// Audit returns up to n entries before the given version, the newest first. With 0 it starts at the newest entry.
	Audit(ctx context.Context, before uint64, n int) ([]*Entry, error)
	// Verify checks the audit, and returns its number of entries. The error describes the first damage.
	Verify(ctx context.Context) (entries int, err error)
	// Status describes whether the Keeper works.
	Status() Status
}

// Status describes whether a Keeper works.
type Status struct {
	// Place describes in words where adjustments are kept.
	Place string
	// Seen is the time of the last answer of the place, or zero before the first answer. Persistent means that
	// adjustments survive a restart.
	Seen       time.Time
	Persistent bool
	// Err is the reason for which the place cannot be reached, or for which adjustments are off, or nil.
	Err error
	// Errors is the number of failed attempts to reach the place.
	Errors uint64
	// Rewritten counts changes that the place had lost, and that this process made again. Lost are unexpired
	// adjustments that the place has lost, and deleted ones that are in force there again. An operator must set or
	// delete them again.
	Rewritten uint64
	Lost      []*Adjustment
}

// Operation is a change for a Keeper to make.
type Operation struct {
	// ID is unique.
	ID             string
	Author, Reason string
	// Target is the ID of the adjustment.
	Target string
	// After is the new adjustment; nil deletes the present one. The Keeper sets After.Created to the time of its
	// clock. If For is more than 0, it sets After.Expires to that time plus For.
	After *Adjustment
	For   time.Duration
	// Expect is the version that the operator knows. Change fails with ErrConflict if the present one differs. nil
	// accepts any version.
	Expect *uint64
}

// Entry returns the audit entry of o as a change of set at time now. The error is a *Mistake, ErrConflict or
// ErrNotFound.
func (o *Operation) Entry(chain *Chain, set *Set, now algorithms.Micros) (*Entry, error) {
	e := &Entry{At: now, Operation: o.ID, Author: o.Author, Reason: o.Reason, Target: o.Target, Before: set.Find(o.Target)}
	if e.Before != nil && e.Before.Expires <= now {
		e.Before = nil
	}
	switch {
	case o.Expect != nil && *o.Expect != set.Head.Version:
		return nil, ErrConflict
	case o.After == nil && e.Before == nil:
		return nil, ErrNotFound
	case o.After != nil:
		after := *o.After
		if after.Created = now; o.For > 0 {
			after.Expires = now + algorithms.Micros(o.For/time.Microsecond)
		}
		if err := after.Check(); err != nil {
			return nil, &Mistake{err.Error()}
		}
		if live := set.Len() - len(set.Expired(now, set.Len())); e.Before == nil && live >= MaxAdjustments {
			return nil, &Mistake{fmt.Sprintf("there are %d adjustments, which is the maximum; delete some, or change the configuration", MaxAdjustments)}
		}
		e.After = &after
	}
	return e, chain.Next(set.Head, e)
}

// Proposal is a change that an operator requests.
type Proposal struct {
	// Target's domain may be empty if only one domain has the limit.
	Target Target
	Change Change
	// For is the duration of the adjustment. Until is its end, and may be set instead.
	For            time.Duration
	Until          time.Time
	Author, Reason string
	// Expect is the same as Operation.Expect.
	Expect *uint64
}

// Limits finds the limits of adjustments in the configuration.
type Limits interface {
	// Adjustable returns the domain and the algorithm of the limit of t. The domain of t may be empty if only one
	// domain has the limit. The error is the reason why t cannot be adjusted.
	Adjustable(t *Target) (domain string, algorithm algorithms.Kind, err error)
	// Words describes the effect of a in a sentence. The error is the reason if a has no effect.
	Words(a *Adjustment) (string, error)
}

// Service implements the operations of operators on adjustments. The admin API and the admin page use it.
type Service struct {
	keeper  Keeper
	limits  Limits
	changed func(*Entry)
}

// NewService returns a Service. It calls changed, unless that is nil, with each change that this process made, for the
// log.
func NewService(k Keeper, l Limits, changed func(*Entry)) *Service {
	return &Service{keeper: k, limits: l, changed: changed}
}

// Shown is an adjustment with its description for operators.
type Shown struct {
	*Adjustment
	// Words describe the effect. If there is no effect now, Ignored has the reason instead.
	Words, Ignored string
	// Left is the time until the adjustment expires.
	Left time.Duration
}

func (s Shown) MarshalJSON() ([]byte, error) {
	text := s.form()
	text.Words, text.Ignored, text.Left = s.Words, s.Ignored, int64(s.Left/time.Second)
	return json.Marshal(text)
}

// Version returns the version of the newest known Set: the number of changes.
func (s *Service) Version() uint64 { return s.keeper.Set().Head.Version }

// Status returns the Status of the Keeper.
func (s *Service) Status() Status { return s.keeper.Status() }

// List returns the adjustments that have not expired, sorted by domain, limit and key, and the version of their Set.
func (s *Service) List() (all []Shown, version uint64) {
	set, now := s.keeper.Set(), s.keeper.Now()
	for _, a := range inForce(set, now) {
		all = append(all, s.show(a, now))
	}
	return all, set.Head.Version
}

// InForce returns the adjustments that have not expired, sorted by domain, limit and key. Some may have no
// effect; List and Find report this.
func (s *Service) InForce() []*Adjustment { return inForce(s.keeper.Set(), s.keeper.Now()) }

func inForce(set *Set, now algorithms.Micros) []*Adjustment {
	return slices.DeleteFunc(set.All(), func(a *Adjustment) bool { return a.Expires <= now })
}

// Find returns the adjustment with an ID. The error is ErrNotFound if there is none or it has expired.
func (s *Service) Find(id string) (Shown, error) {
	a, now := s.keeper.Set().Find(id), s.keeper.Now()
	if a == nil || a.Expires <= now {
		return Shown{}, ErrNotFound
	}
	return s.show(a, now), nil
}

func (s *Service) show(a *Adjustment, now algorithms.Micros) Shown {
	shown := Shown{Adjustment: a, Left: time.Duration(a.Expires-now) * time.Microsecond}
	words, err := s.limits.Words(a)
	if shown.Words = words; err != nil {
		shown.Ignored = err.Error()
	}
	return shown
}

// Preview returns the adjustment that p would make, and changes nothing. The error is a *Mistake.
func (s *Service) Preview(p Proposal) (Shown, error) {
	o, err := s.operation(p)
	if err != nil {
		return Shown{}, err
	}
	a, now := *o.After, s.keeper.Now()
	if a.Created = now; o.For > 0 {
		a.Expires = now + algorithms.Micros(o.For/time.Microsecond)
	}
	if err := a.Check(); err != nil {
		return Shown{}, &Mistake{err.Error()}
	}
	shown := s.show(&a, now)
	if shown.Ignored != "" {
		return Shown{}, &Mistake{shown.Ignored}
	}
	return shown.replacing(s.keeper.Set().Find(a.ID), now), nil
}

// Set makes the adjustment p, and returns it with the version of the change. It replaces the adjustment of the same
// target, if there is one. An error is a *Mistake, ErrConflict, or an error of the place. After an error of the place,
// the change may have been made; the audit shows it.
func (s *Service) Set(ctx context.Context, p Proposal) (Shown, uint64, error) {
	if _, err := s.Preview(p); err != nil {
		return Shown{}, 0, err
	}
	o, err := s.operation(p)
	if err != nil {
		return Shown{}, 0, err
	}
	e, err := s.change(ctx, o)
	if err != nil {
		return Shown{}, 0, err
	}
	now := s.keeper.Now()
	return s.show(e.After, now).replacing(e.Before, now), e.Version, nil
}

func (s Shown) replacing(former *Adjustment, now algorithms.Micros) Shown {
	if former != nil && former.Expires > now {
		s.Words += fmt.Sprintf("; replaces the adjustment %q by %s (%s), which would have ended at %s", former.Change.String(),
			descriptors.Printable(former.Author), descriptors.Printable(former.Reason), time.UnixMicro(int64(former.Expires)).UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	return s
}

// Delete ends an adjustment before it expires, and returns the version of the change. The errors are those of Set, and
// ErrNotFound.
func (s *Service) Delete(ctx context.Context, id, author, reason string, expect *uint64) (uint64, error) {
	for _, err := range []error{checkText("author", author, maxAuthor), checkText("reason", reason, maxReason)} {
		if err != nil {
			return 0, &Mistake{err.Error()}
		}
	}
	e, err := s.change(ctx, Operation{Author: author, Reason: reason, Target: id, Expect: expect})
	if err != nil {
		return 0, err
	}
	return e.Version, nil
}

func (s *Service) change(ctx context.Context, o Operation) (*Entry, error) {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	o.ID = hex.EncodeToString(id[:])
	e, err := s.keeper.Change(ctx, o)
	if err == nil && s.changed != nil {
		s.changed(e)
	}
	return e, err
}

// Audit returns up to n changes before the given version, the newest first. With 0 it starts at the newest change.
func (s *Service) Audit(ctx context.Context, before uint64, n int) ([]*Entry, error) {
	return s.keeper.Audit(ctx, before, n)
}

// Verify checks the audit, and returns its number of entries. The error describes the first damage.
func (s *Service) Verify(ctx context.Context) (entries int, err error) { return s.keeper.Verify(ctx) }

// operation converts p to an Operation. The error is a *Mistake.
func (s *Service) operation(p Proposal) (Operation, error) {
	if p.For != 0 && !p.Until.IsZero() {
		return Operation{}, &Mistake{"state the duration of the adjustment (for) or its end (until), not both"}
	}
	if p.For <= 0 && p.Until.IsZero() {
		return Operation{}, &Mistake{"state the duration of the adjustment (for) or its end (until): every adjustment expires"}
	}
	domain, algorithm, err := s.limits.Adjustable(&p.Target)
	if err != nil {
		return Operation{}, &Mistake{err.Error()}
	}
	p.Target.Domain = domain
	a := &Adjustment{
		ID: p.Target.ID(), Target: p.Target, Change: p.Change, Algorithm: algorithm,
		Author: p.Author, Reason: p.Reason, Expires: algorithms.Micros(p.Until.UnixMicro()),
	}
	return Operation{Author: p.Author, Reason: p.Reason, Target: a.ID, After: a, For: min(p.For, 2*MaxFor), Expect: p.Expect}, nil
}
