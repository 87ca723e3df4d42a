package adjust

import (
	"cmp"
	"maps"
	"slices"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Set has the adjustments of one version. It is immutable.
type Set struct {
	// Head is that of the newest change that the Set includes.
	Head Head
	byID map[string]*Adjustment
}

// Head identifies the newest entry of the audit by its version, counted from 1, and its MAC. Version 0 means that there
// is no entry.
type Head struct {
	Version uint64
	MAC     string
}

// NewSet returns a Set of adjustments. Each target has at most one.
func NewSet(head Head, all []*Adjustment) *Set {
	s := &Set{Head: head, byID: make(map[string]*Adjustment, len(all))}
	for _, a := range all {
		s.byID[a.ID] = a
	}
	return s
}

// Len returns the number of adjustments, including expired ones.
func (s *Set) Len() int { return len(s.byID) }

// Find returns the adjustment with an ID, or nil.
func (s *Set) Find(id string) *Adjustment { return s.byID[id] }

// All returns the adjustments, sorted by domain, limit and key.
func (s *Set) All() []*Adjustment {
	return slices.SortedFunc(maps.Values(s.byID), func(a, b *Adjustment) int {
		return cmp.Or(cmp.Compare(a.Target.Domain, b.Target.Domain), cmp.Compare(a.Target.Limit, b.Target.Limit),
			slices.Compare(a.Target.Key, b.Target.Key), cmp.Compare(a.ID, b.ID))
	})
}

// With returns s with the changes of entries, which follow its Head.
func (s *Set) With(entries ...*Entry) *Set {
	next := &Set{Head: s.Head, byID: maps.Clone(s.byID)}
	for _, e := range entries {
		next.Head = Head{e.Version, e.MAC}
		if e.After == nil {
			delete(next.byID, e.Target)
		} else {
			next.byID[e.Target] = e.After
		}
	}
	return next
}

// Expired returns the IDs of at most n adjustments that have expired at time now.
func (s *Set) Expired(now algorithms.Micros, n int) (ids []string) {
	for id, a := range s.byID {
		if a.Expires <= now && len(ids) < n {
			ids = append(ids, id)
		}
	}
	return ids
}

// Without returns s without the adjustments with these IDs.
func (s *Set) Without(ids []string) *Set {
	if len(ids) == 0 {
		return s
	}
	next := &Set{Head: s.Head, byID: maps.Clone(s.byID)}
	for _, id := range ids {
		delete(next.byID, id)
	}
	return next
}

// Differences returns the adjustments that are in only one of two Sets, or that are not equal in both. For the
// latter it returns those of a.
func Differences(a, b *Set) (changed []*Adjustment) {
	for id, x := range a.byID {
		if y := b.byID[id]; x != y && !x.equal(y) {
			changed = append(changed, x)
		}
	}
	for id, y := range b.byID {
		if a.byID[id] == nil {
			changed = append(changed, y)
		}
	}
	return changed
}
