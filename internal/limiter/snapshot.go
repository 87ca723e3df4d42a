package limiter

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Snapshot is one compiled configuration. It is immutable: a reload replaces it as a whole.
type Snapshot struct {
	Domains map[string]*Domain
	// Policies has the policies of all domains.
	Policies []*Policy
	// Auth is for the HTTP listener. If it is nil, auth requests are denied.
	Auth *Auth
	// KeepBlanks keeps blanks at the ends of descriptor values. Otherwise they are removed before limits are
	// matched and keys are made.
	KeepBlanks bool
	// Hash identifies the configuration, whatever the names of its Files.
	Hash  string
	Files []string
	// sorted has the Policies by domain and name, and the first one of each limit. It is made at the first call of sort,
	// because requests do not need it.
	sorted struct {
		once        sync.Once
		all, limits []*Policy
	}
}

func (s *Snapshot) sort() {
	definition := func(p *Policy) int {
		if p.Extra().Named {
			return 1
		}
		return 0
	}
	s.sorted.once.Do(func() {
		all := slices.Clone(s.Policies)
		slices.SortStableFunc(all, func(a, b *Policy) int {
			if order := a.compareName(b.Domain, b.Name); order != 0 {
				return order
			}
			return cmp.Or(definition(a)-definition(b), cmp.Compare(a.Index, b.Index))
		})
		s.sorted.all = all
		s.sorted.limits = slices.CompactFunc(slices.Clone(all), func(a, b *Policy) bool { return a.compareName(b.Domain, b.Name) == 0 })
	})
}

func (p *Policy) compareName(domain, name string) int {
	return cmp.Or(cmp.Compare(p.Domain, domain), cmp.Compare(p.Name, name))
}

// Limits returns the first policy of each limit (Find), sorted by domain and name.
func (s *Snapshot) Limits() []*Policy {
	s.sort()
	return s.sorted.limits
}

// Find returns all policies of a limit. The definition of a named limit is the last one, because only the uses have the
// names of the keys.
func (s *Snapshot) Find(domain, name string) []*Policy {
	s.sort()
	uses := s.sorted.all
	from, _ := slices.BinarySearchFunc(uses, name, func(p *Policy, name string) int { return p.compareName(domain, name) })
	uses = uses[from:]
	if end := slices.IndexFunc(uses, func(p *Policy) bool { return p.compareName(domain, name) != 0 }); end >= 0 {
		uses = uses[:end]
	}
	return uses
}

// domain returns the domain with this name, or nil if it is not configured. It first tries the domain of
// the Call last, which may be nil, because requests that arrive together mostly have the same domain.
func (s *Snapshot) domain(name string, last *Call) *Domain {
	if last != nil && last.Snapshot == s && last.Verdict.Domain != nil && last.Verdict.Domain.Name == name {
		return last.Verdict.Domain
	}
	return s.Domains[name]
}

// domainOf returns the domain of a reservation, or nil if it is not configured. s may be nil.
func (s *Snapshot) domainOf(r *Reserved) *Domain {
	if s == nil {
		return nil
	}
	for _, d := range s.Domains {
		if PrefixNumber(d.Name) == r.Domain {
			return d
		}
	}
	return nil
}

// Domain has the limits of one domain.
type Domain struct {
	Name string
	Tree *Tree
	// Policies has the policies of the domain, each at its Index.
	Policies []*Policy
	Named    map[string]*Policy
	// Alone means `consume: each`.
	Alone bool
	// OnFailure, Slot and, with OnFailure local, LocalShare are the domain's defaults, for overrides.
	OnFailure  OnFailure
	Slot       Slot
	LocalShare float64
	// Require lists the entries that a request must have; without them it is denied.
	Require []Requirement
	// Settle has the keys of entries that contain reservations. It is nil if proxies settle reservations of
	// no limit of the domain. Settling has the limits whose reservations they settle, and the concurrency limits, one for
	// each set of buckets, by PrefixNumber.
	Settle   *SettleEntries
	Settling map[uint64]*Policy
	// FormerSettle has the keys of entries with ids of limits that the domain no longer has; nil means DefaultSettle.
	FormerSettle *SettleEntries
	// DenyBody is the body of denials by limits without a body of their own.
	DenyBody Body
	// Headers are the sets of headers of the HTTP listener; nil means its defaults. OpenAI headers are sent
	// to Envoy too.
	Headers *HeaderSets
	// MaxOverride bounds overrides, unless the descriptor has a bound of its own. nil means no bound. Bounded means
	// that there is a bound here or at any descriptor.
	MaxOverride *Policy
	Bounded     bool

	overrides     sync.Map // maps an Override to its *Policy
	overrideCount atomic.Int64
}

// maxOverrides is the largest number of compiled overrides that a domain keeps.
const maxOverrides = 4096

// MostOverride returns the bound of an override with these entries, or nil.
func (d *Domain) MostOverride(entries []descriptors.Entry) *Policy {
	if !d.Bounded {
		return nil
	}
	if node := d.Tree.Match(entries); node != nil && node.Found.MaxOverride != nil {
		return node.Found.MaxOverride
	}
	return d.MaxOverride
}

// override compiles an override. It returns nil if its numbers describe no window. The Index of its Policy
// is -1.
func (d *Domain) override(o Override) *Policy {
	if p, ok := d.overrides.Load(o); ok {
		return p.(*Policy)
	}
	epoch := algorithms.Micros(0)
	spec := algorithms.Spec{
		Kind: algorithms.FixedWindow, Rate: int64(o.Rate), Period: o.Period, Start: &epoch,
		TakesDenied: d.Alone, PerRequest: true,
	}
	limit, err := algorithms.Compile(spec)
	if err != nil {
		return nil
	}
	p := &Policy{
		Index: -1, Domain: d.Name, Name: "override", Owner: d.Name + "//#override", Limit: &limit,
		Keys:      descriptors.Keys{Prefix: descriptors.Prefix(d.Name, "override", fmt.Sprint(int64(o.Period)), limit.Kind), Whole: true},
		Reference: true, Alone: d.Alone, OnFailure: d.OnFailure, Extras: &Extras{Slot: d.Slot},
	}
	if local, err := algorithms.Compile(SpecShare(spec, d.LocalShare)); err == nil && d.OnFailure == Local {
		p.Extras.Local = &local
	}
	if d.overrideCount.Add(1) > maxOverrides {
		d.overrideCount.Add(-1)
		return p
	}
	d.overrides.Store(o, p)
	return p
}

// SettleEntries are the keys of the two descriptors with which a proxy settles a reservation.
type SettleEntries struct {
	// Key is the key of the descriptor whose value is the id, and whose hits are the real cost. End is the key of
	// the descriptor that has the id alone. The proxy sends it at the end of each request, even if the real cost is
	// unknown.
	Key, End string
}

// DefaultSettle has the keys of a domain that states none.
var DefaultSettle = SettleEntries{Key: "settle", End: "settle_end"}

// Requirement is a list of keys. A request satisfies it if an entry in any of its descriptors has one of these
// keys, and a value that is not empty.
type Requirement []string

// String returns the keys in words: "user or team".
func (r Requirement) String() string { return descriptors.PrintableList(r, " or ") }

// Requires reports whether requests to a domain must have certain entries. If so, a request without descriptors
// is denied.
func (s *Snapshot) Requires(domain string) bool {
	d := s.Domains[domain]
	return d != nil && len(d.Require) > 0
}

// missing returns the first Requirement of d that the request does not satisfy, or nil if it satisfies all of
// them. Blanks at the ends of values have been removed before, unless Snapshot.KeepBlanks is set. A settle-done
// request need not satisfy any, because its work is over.
func (c *Call) missing(d *Domain) Requirement {
	if c.IsDone() {
		return nil
	}
	for _, r := range d.Require {
		if !c.satisfies(r) {
			return r
		}
	}
	return nil
}

func (c *Call) satisfies(r Requirement) bool {
	for i := range c.Descriptors {
		for _, e := range c.Descriptors[i].Entries {
			if e.Value != "" && slices.Contains(r, e.Key) {
				return true
			}
		}
	}
	return false
}

func (c *Call) denyMissing() {
	c.Denied, c.Never = true, true
	for i := range c.Statuses {
		c.Statuses[i].Denied = true
	}
}
