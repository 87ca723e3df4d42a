package memory

import (
	"sync"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// records are what was answered to groups that are taken once. They share the room of the buckets,
// and like these are refused, never forgotten early, when there is none.
type records struct {
	mu     sync.Mutex
	byID   map[[16]byte]record              // guarded by mu
	due    map[algorithms.Micros][][16]byte // by the minute in which they can go; guarded by mu
	minute algorithms.Micros                // the last one swept in; guarded by mu
}

// record is one of them.
type record struct {
	of        [32]byte
	until     algorithms.Micros
	decisions []backend.Decision
}

func newRecords() records {
	return records{byID: map[[16]byte]record{}, due: map[algorithms.Micros][][16]byte{}}
}

const minute = 60 * algorithms.Second

// takeOnce takes a group, or answers as it was answered before. Others that are taken once wait:
// they are few.
func (s *Store) takeOnce(now algorithms.Micros, charges []backend.Charge, decisions []backend.Decision) {
	r := &s.records
	r.mu.Lock()
	defer r.mu.Unlock()
	once := charges[0].Once
	if was, ok := r.byID[once.ID]; ok && now < was.until {
		was.answer(once, decisions)
		return
	}
	n := len(charges)
	if gone := r.forget(once.ID) + r.sweep(now); gone > 0 {
		s.room.give(recordsOwner, gone)
	}
	if !s.room.take(recordsOwner, n) { // before anything is taken that could not be remembered
		s.full.Add(1)
		for i := range decisions {
			decisions[i] = backend.Decision{Err: backend.ErrFull}
		}
		return
	}
	s.takeGroup(now, nil, charges, decisions)
	if !backend.Took(charges, decisions) {
		s.room.give(recordsOwner, n)
		return
	}
	until := now + once.For
	r.byID[once.ID] = record{of: once.Of, until: until, decisions: append([]backend.Decision(nil), decisions...)}
	r.due[until/minute+1] = append(r.due[until/minute+1], once.ID)
}

// answer gives what was answered, if it was to the same.
func (r *record) answer(once *backend.Once, decisions []backend.Decision) {
	for i := range decisions {
		if r.of != once.Of || len(r.decisions) != len(decisions) {
			decisions[i] = backend.Decision{Err: backend.ErrReused}
			continue
		}
		decisions[i] = r.decisions[i]
		decisions[i].Replayed = true
	}
}

// sweepRecords forgets those whose time is over.
func (s *Store) sweepRecords(now algorithms.Micros) {
	s.records.mu.Lock()
	defer s.records.mu.Unlock()
	if gone := s.records.sweep(now); gone > 0 {
		s.room.give(recordsOwner, gone)
	}
}

// sweep forgets records once a minute and returns the room they had; r.mu is held.
func (r *records) sweep(now algorithms.Micros) (gone int) {
	if r.minute == now/minute {
		return 0
	}
	r.minute = now / minute
	for at, ids := range r.due {
		if at > r.minute {
			continue
		}
		for _, id := range ids {
			if r.byID[id].until <= now { // else it was taken anew since, and is due later
				gone += r.forget(id)
			}
		}
		delete(r.due, at)
	}
	return gone
}

// forget forgets a record, if there is one, and returns the room it had; r.mu is held.
func (r *records) forget(id [16]byte) int {
	n := len(r.byID[id].decisions)
	delete(r.byID, id)
	return n
}
