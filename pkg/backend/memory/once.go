package memory

import (
	"sync"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// records has the decisions of groups with idempotency keys. They share the room of the buckets. If there is
// no room, a new record is refused; no record is deleted before it expires.
type records struct {
	mu sync.Mutex
	// byID has no pointers, so that the garbage collector does not visit each record; guarded by mu.
	byID   map[[16]byte]record
	others map[[16]byte][]decision          // the decisions after the first; guarded by mu
	due    map[algorithms.Micros][][16]byte // ids by the minute in which they expire; guarded by mu
	minute algorithms.Micros                // the minute of the last sweep; guarded by mu
}

// record has the first decision of a group, and the number of the group's decisions.
type record struct {
	of    [32]byte
	until algorithms.Micros
	first decision
	n     int32
}

// decision is a backend.Decision without an error.
type decision struct {
	algorithms.Decision
	at algorithms.Micros
}

func newRecords() records {
	return records{
		byID: map[[16]byte]record{}, others: map[[16]byte][]decision{}, due: map[algorithms.Micros][][16]byte{},
	}
}

const minute = 60 * algorithms.Second

// takeOnce decides a group, or repeats its stored decisions. It holds the lock of all records during the
// decision. That is acceptable because few requests have idempotency keys. hash is the hash of the first key.
func (s *Store) takeOnce(now algorithms.Micros, hash uint64, charges []backend.Charge, decisions []backend.Decision) {
	r := &s.records
	r.mu.Lock()
	defer r.mu.Unlock()
	once := charges[0].IdempotencyKey
	if was, ok := r.byID[once.ID]; ok && now < was.until {
		r.answer(&was, once, decisions)
		return
	}
	n := len(charges)
	if gone := r.forget(once.ID) + r.sweep(now); gone > 0 {
		s.room.give(recordsOwner, gone)
	}
	if !s.room.take(recordsOwner, n) { // The room is reserved first. A group that consumed units without a stored decision could consume again.
		s.full.Add(1)
		for i := range decisions {
			decisions[i] = backend.Decision{Err: backend.ErrFull}
		}
		return
	}
	if n == 1 {
		s.takeOne(now, hash, &charges[0], &decisions[0])
	} else {
		s.takeGroup(now, nil, charges, decisions)
	}
	if !backend.ConsumedAny(charges, decisions) {
		s.room.give(recordsOwner, n)
		return
	}
	r.keep(once, now+once.Lifetime, decisions)
}

// keep stores the decisions of a group. r.mu must be held.
func (r *records) keep(once *backend.IdempotencyKey, until algorithms.Micros, decisions []backend.Decision) {
	of := func(d *backend.Decision) decision { return decision{d.Decision, d.At} }
	r.byID[once.ID] = record{once.Digest, until, of(&decisions[0]), int32(len(decisions))}
	if len(decisions) > 1 {
		others := make([]decision, 0, len(decisions)-1)
		for i := range decisions[1:] {
			others = append(others, of(&decisions[1+i]))
		}
		r.others[once.ID] = others
	}
	r.due[until/minute+1] = append(r.due[until/minute+1], once.ID)
}

// answer writes the stored decisions if the group is the same, and ErrReused otherwise. r.mu must be held.
func (r *records) answer(was *record, once *backend.IdempotencyKey, decisions []backend.Decision) {
	if was.of != once.Digest || int(was.n) != len(decisions) {
		for i := range decisions {
			decisions[i] = backend.Decision{Err: backend.ErrReused}
		}
		return
	}
	decisions[0] = backend.Decision{Decision: was.first.Decision, At: was.first.at, Replayed: true}
	for i, d := range r.others[once.ID] {
		decisions[1+i] = backend.Decision{Decision: d.Decision, At: d.at, Replayed: true}
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
			if kept, ok := r.byID[id]; ok && kept.until <= now { // otherwise a later record has the same ID, and expires later
				gone += r.forget(id)
			}
		}
		delete(r.due, at)
	}
	return gone
}

// forget deletes the record with an id, if there is one, and returns the room that it used. r.mu is held.
func (r *records) forget(id [16]byte) int {
	kept, ok := r.byID[id]
	if !ok {
		return 0
	}
	delete(r.byID, id)
	if kept.n > 1 {
		delete(r.others, id)
	}
	return int(kept.n)
}
