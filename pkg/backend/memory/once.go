package memory

import (
	"sync"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// records keeps the decisions of groups with idempotency keys. They share the room of the buckets. If there
// is no room, a new record is refused, and none is deleted early.
type records struct {
	mu     sync.Mutex
	byID   map[[16]byte]*record             // guarded by mu
	due    map[algorithms.Micros][][16]byte // ids by the minute in which they expire; guarded by mu
	minute algorithms.Micros                // the minute of the last sweep; guarded by mu
}

// record has the decisions of one group.
type record struct {
	of        [32]byte
	until     algorithms.Micros
	decisions []backend.Decision
	one       [1]backend.Decision // the memory of decisions if there is only one
}

func newRecords() records {
	return records{byID: map[[16]byte]*record{}, due: map[algorithms.Micros][][16]byte{}}
}

const minute = 60 * algorithms.Second

// takeOnce decides a group, or repeats its former decisions. It holds the lock of all records during the
// decision. That is acceptable because few requests have idempotency keys.
func (s *Store) takeOnce(now algorithms.Micros, charges []backend.Charge, decisions []backend.Decision) {
	r := &s.records
	r.mu.Lock()
	defer r.mu.Unlock()
	once := charges[0].IdempotencyKey
	if was, ok := r.byID[once.ID]; ok && now < was.until {
		was.answer(once, decisions)
		return
	}
	n := len(charges)
	if gone := r.forget(once.ID) + r.sweep(now); gone > 0 {
		s.room.give(recordsOwner, gone)
	}
	if !s.room.take(recordsOwner, n) { // reserved before consuming units, because a consumption without a stored decision could be repeated
		s.full.Add(1)
		for i := range decisions {
			decisions[i] = backend.Decision{Err: backend.ErrFull}
		}
		return
	}
	s.takeGroup(now, nil, charges, decisions)
	if !backend.ConsumedAny(charges, decisions) {
		s.room.give(recordsOwner, n)
		return
	}
	until := now + once.Lifetime
	kept := &record{of: once.Digest, until: until}
	kept.decisions = append(kept.one[:0], decisions...)
	r.byID[once.ID] = kept
	r.due[until/minute+1] = append(r.due[until/minute+1], once.ID)
}

// answer writes the former decisions if the group is the same, and ErrReused otherwise.
func (r *record) answer(once *backend.IdempotencyKey, decisions []backend.Decision) {
	for i := range decisions {
		if r.of != once.Digest || len(r.decisions) != len(decisions) {
			decisions[i] = backend.Decision{Err: backend.ErrReused}
			continue
		}
		decisions[i] = r.decisions[i]
		decisions[i].Replayed = true
	}
}

// sweepRecords deletes the expired records.
func (s *Store) sweepRecords(now algorithms.Micros) {
	s.records.mu.Lock()
	defer s.records.mu.Unlock()
	if gone := s.records.sweep(now); gone > 0 {
		s.room.give(recordsOwner, gone)
	}
}

// sweep deletes expired records once a minute, and returns the room that they used. r.mu is held.
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
			if kept := r.byID[id]; kept != nil && kept.until <= now { // otherwise the record was replaced and expires later
				gone += r.forget(id)
			}
		}
		delete(r.due, at)
	}
	return gone
}

// forget deletes the record with an id, if there is one, and returns the room that it used. r.mu is held.
func (r *records) forget(id [16]byte) int {
	kept := r.byID[id]
	if kept == nil {
		return 0
	}
	delete(r.byID, id)
	return len(kept.decisions)
}
