package adjust

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// MaxChanges is the number of changes that are kept, for operators and to repair a Redis that has lost data.
const MaxChanges = 1000

// Set has the adjustments of one version, and the last changes. It is immutable.
type Set struct {
	// Head is that of the newest change.
	Head    Head
	byID    map[string]*Adjustment
	changes []*Entry // at most MaxChanges, the oldest first
}

// Head identifies a change. Version counts changes from 1. ID is random, because after Redis has lost data, two
// different changes can have the same version. Version 0 means that there was no change.
type Head struct {
	Version uint64 `json:"version"`
	ID      string `json:"operation"`
}

// String returns the form that the Ledger stores, or "" before the first change.
func (h Head) String() string {
	if h.Version == 0 {
		return ""
	}
	return fmt.Sprintf("%d %s", h.Version, h.ID)
}

func parseHead(text string) (h Head, err error) {
	version, id, _ := strings.Cut(text, " ")
	if h.Version, err = strconv.ParseUint(version, 10, 63); err != nil {
		return Head{}, fmt.Errorf("the version of the adjustments cannot be read: %w", err)
	}
	h.ID = id
	return h, nil
}

// Entry is one change.
type Entry struct {
	Head
	// At is the time of the change by the Keeper's clock.
	At time.Time `json:"at"`
	// Author is the name that the operator stated, without proof; Reason is the operator's reason.
	Author string `json:"author"`
	Reason string `json:"reason"`
	// Target is the ID of the adjustment that was set or deleted.
	Target string `json:"target"`
	// Before and After are the adjustment before and after the change, or nil.
	Before *Adjustment `json:"before,omitempty"`
	After  *Adjustment `json:"after,omitempty"`
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
func (s *Set) All() []*Adjustment { return sorted(s.byID) }

func sorted(byID map[string]*Adjustment) []*Adjustment {
	return slices.SortedFunc(maps.Values(byID), func(a, b *Adjustment) int {
		return cmp.Or(cmp.Compare(a.Target.Domain, b.Target.Domain), cmp.Compare(a.Target.Limit, b.Target.Limit),
			slices.Compare(a.Target.Key, b.Target.Key), cmp.Compare(a.ID, b.ID))
	})
}

// Changes returns the last n changes, the newest first.
func (s *Set) Changes(n int) []*Entry {
	last := slices.Clone(s.changes[max(0, len(s.changes)-n):])
	slices.Reverse(last)
	return last
}

// With returns s with the changes of entries, which follow its Head. Each change removes the adjustments that have
// expired at its time.
func (s *Set) With(entries ...*Entry) *Set {
	next := &Set{Head: s.Head, byID: maps.Clone(s.byID), changes: slices.Concat(s.changes, entries)}
	next.changes = next.changes[max(0, len(next.changes)-MaxChanges):]
	for _, e := range entries {
		next.Head = e.Head
		next.expire(algorithms.Micros(e.At.UnixMicro()))
		if e.After == nil {
			delete(next.byID, e.Target)
		} else {
			next.byID[e.After.ID] = e.After
		}
	}
	return next
}

// Live returns s without the adjustments that have expired at time now.
func (s *Set) Live(now algorithms.Micros) *Set {
	next := &Set{Head: s.Head, byID: maps.Clone(s.byID), changes: s.changes}
	next.expire(now)
	return next
}

func (s *Set) expire(now algorithms.Micros) {
	maps.DeleteFunc(s.byID, func(_ string, a *Adjustment) bool { return a.Expires <= now })
}

// since returns the changes after that of head; known is false if s does not have the change of head.
func (s *Set) since(head string) (entries []*Entry, known bool) {
	i := slices.IndexFunc(s.changes, func(e *Entry) bool { return e.Head.String() == head })
	return s.changes[i+1:], i >= 0
}

// newest returns the last change of a target, or nil.
func (s *Set) newest(target string) *Entry {
	for _, e := range slices.Backward(s.changes) {
		if e.Target == target {
			return e
		}
	}
	return nil
}

// Differences returns the adjustments that are in only one of two Sets, or that are not equal in both. For the
// latter it returns those of a.
func Differences(a, b *Set) (changed []*Adjustment) {
	all := maps.Clone(b.byID)
	maps.Copy(all, a.byID)
	for id, x := range all {
		if !reflect.DeepEqual(a.byID[id], b.byID[id]) {
			changed = append(changed, x)
		}
	}
	return changed
}
