package adjust

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
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

// Proposal is a change that an operator requests.
type Proposal struct {
	// Target's domain may be empty if only one domain has the limit.
	Target Target
	Change Change
	// For is the duration of the adjustment. Until is its end, and may be set instead.
	For            Span
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
	keeper  *Keeper
	limits  Limits
	changed func(*Entry)
}

// NewService returns a Service. It calls changed, unless that is nil, with each change that this process made, for the
// log.
func NewService(k *Keeper, l Limits, changed func(*Entry)) *Service {
	return &Service{keeper: k, limits: l, changed: changed}
}

// Status returns the Status of the Keeper.
func (s *Service) Status() Status { return s.keeper.Status() }

// List returns the adjustments that have not expired, sorted by domain, limit and key, and the version of their Set.
func (s *Service) List() (all []*Adjustment, version uint64) {
	now := s.keeper.Now()
	set := s.keeper.Set().Live(now)
	for _, a := range set.All() {
		all = append(all, s.show(a, now))
	}
	return all, set.Head.Version
}

// InForce returns the adjustments that have not expired, sorted by domain, limit and key. Some may have no
// effect; List and Find report this.
func (s *Service) InForce() []*Adjustment { return s.keeper.Set().Live(s.keeper.Now()).All() }

// Find returns the adjustment with an ID. The error is ErrNotFound if there is none or it has expired.
func (s *Service) Find(id string) (*Adjustment, error) {
	a, now := s.keeper.Set().Find(id), s.keeper.Now()
	if a == nil || a.Expires <= now {
		return nil, ErrNotFound
	}
	return s.show(a, now), nil
}

// show returns a copy of a with the fields for operators.
func (s *Service) show(a *Adjustment, now algorithms.Micros) *Adjustment {
	shown := *a
	words, err := s.limits.Words(a)
	if shown.Words, shown.Left = words, time.Duration(a.Expires-now)*time.Microsecond; err != nil {
		shown.Ignored = err.Error()
	}
	return &shown
}

// Preview returns the adjustment that p would make, and changes nothing. The error is a *Mistake.
func (s *Service) Preview(p Proposal) (*Adjustment, error) {
	p.Expect = nil
	_, shown, err := s.operation(p)
	return shown, err
}

// Set makes the adjustment p, and returns it with the version of the change. It replaces the adjustment of the same
// target, if there is one. An error is a *Mistake, ErrConflict, or an error of the place. After an error of the place,
// the change may have been made; the audit shows it.
func (s *Service) Set(ctx context.Context, p Proposal) (*Adjustment, uint64, error) {
	o, _, err := s.operation(p)
	if err != nil {
		return nil, 0, err
	}
	e, err := s.change(ctx, o)
	if err != nil {
		return nil, 0, err
	}
	return s.show(e.After, s.keeper.Now()).replacing(e.Before), e.Version, nil
}

// replacing adds to the words of a that it replaces former, if that is not nil.
func (a *Adjustment) replacing(former *Adjustment) *Adjustment {
	if former != nil {
		a.Words += fmt.Sprintf("; replaces the adjustment %q by %s (%s), which would have ended at %s",
			former.Change.String(), descriptors.Printable(former.Author), descriptors.Printable(former.Reason), former.End())
	}
	return a
}

// Delete ends an adjustment before it expires, and returns the version of the change. The errors are those of Set, and
// ErrNotFound.
func (s *Service) Delete(ctx context.Context, id, author, reason string, expect *uint64) (uint64, error) {
	e, err := s.change(ctx, Operation{Entry: Entry{Author: author, Reason: reason, Target: id}, Expect: expect})
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

// Audit returns the last n changes, at most MaxChanges, the newest first.
func (s *Service) Audit(n int) []*Entry { return s.keeper.Set().Changes(n) }

// operation converts p to an Operation, and returns the adjustment that it would make now. The error is a *Mistake or
// ErrConflict.
func (s *Service) operation(p Proposal) (o Operation, made *Adjustment, err error) {
	if p.For != 0 && !p.Until.IsZero() {
		return o, made, &Mistake{"state the duration of the adjustment (for) or its end (until), not both"}
	}
	if p.For <= 0 && p.Until.IsZero() {
		return o, made, &Mistake{"state the duration of the adjustment (for) or its end (until): every adjustment expires"}
	}
	domain, algorithm, err := s.limits.Adjustable(&p.Target)
	if err != nil {
		return o, made, &Mistake{err.Error()}
	}
	p.Target.Domain = domain
	a := &Adjustment{
		ID: p.Target.ID(), Target: p.Target, Change: p.Change, Algorithm: algorithm,
		Author: p.Author, Reason: p.Reason, Expires: algorithms.Micros(p.Until.UnixMicro()),
	}
	o = Operation{Entry: Entry{Author: p.Author, Reason: p.Reason, Target: a.ID, After: a}, For: p.For, Expect: p.Expect}
	now := s.keeper.Now()
	e, err := o.entry(s.keeper.Set(), now)
	if err != nil {
		return o, made, err
	}
	if made = s.show(e.After, now); made.Ignored != "" {
		return o, made, &Mistake{made.Ignored}
	}
	return o, made.replacing(e.Before), nil
}
