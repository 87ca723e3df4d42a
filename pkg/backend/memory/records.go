package memory

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// recordStripes is the number of locks over which the records are spread. When an index grows, its lock is held
// for about 3 ns for each of its records.
const recordStripes = 16

// records has one stripe of the records: the decisions of groups with idempotency keys. They share the room of
// the buckets. If there is no room, a new record is refused; no record is deleted before it expires. All methods
// except peek require mu.
//
// The records are in chunks, which never move. A new record reuses the place of a deleted one, or else gets the
// next place of the last chunk. New records are therefore next to each other, and writing one needs few cache
// misses. Only the index is spread over the memory, and touch reads it ahead. In a Go map of records, looking
// up and writing them took a sixth of the time of a reservation and its settlement. Neither the chunks nor the
// index have pointers, so that the garbage collector does not visit each record.
type records struct {
	mu sync.Mutex
	// index is a hash table, probed linearly: for each record the hash of its ID, shifted by 32 bits, and its
	// ref; 0 means empty. The length is a power of two. mu guards it and the following fields, except seen.
	index           []uint64
	seen            atomic.Pointer[[]uint64] // the index, for readers without the lock
	count           int
	chunks          []*[recordsPerChunk]record
	everUsed        int
	free            recordRef                       // the record that was freed last, which links the other free ones
	others          map[[16]byte][]decision         // by ID, the decisions of a group after its first
	due             map[algorithms.Micros]recordRef // by minute, the records to sweep in it: the one that was added last, which links the others
	lastSweepMinute algorithms.Micros
	_               [64]byte
}

// recordRef is 1 + the number of a record. 0 means none.
type recordRef uint32

// record has the first decision of a group, and the number of the group's decisions.
type record struct {
	id     [16]byte
	digest [32]byte
	until  algorithms.Micros
	first  decision
	n      int32
	next   recordRef // another record that is swept at the same time, or another unused record
}

// recordsPerChunk makes a chunk at most 32 KiB long, because the runtime rounds up the size of larger ones.
const recordsPerChunk = 32 << 10 / unsafe.Sizeof(record{})

// decision is a backend.Decision without an error.
type decision struct {
	algorithms.Decision
	at algorithms.Micros
}

// recordsOf returns the stripe of the records with an ID, and the hash by which its index finds the ID.
func (s *Store) recordsOf(id *[16]byte) (r *records, hash uint32) {
	h := s.hash(id[:])
	return &s.records[h>>32%recordStripes], uint32(h)
}

// find returns 0 if no record has this ID.
func (r *records) find(hash uint32, id *[16]byte) recordRef {
	if len(r.index) == 0 {
		return 0
	}
	mask := uint32(len(r.index) - 1)
	for i := hash & mask; r.index[i] != 0; i = (i + 1) & mask {
		if ref := recordRef(r.index[i]); uint32(r.index[i]>>32) == hash && r.at(ref).id == *id {
			return ref
		}
	}
	return 0
}

// peek reads the element of the index at which a search for hash starts. It needs no lock, so the element may be
// outdated. touch calls it only to load the element into the processor's cache.
func (r *records) peek(hash uint32) uint64 {
	index := r.seen.Load()
	if index == nil {
		return 0
	}
	return atomic.LoadUint64(&(*index)[hash&uint32(len(*index)-1)])
}

func (r *records) enter(hash uint32, ref recordRef) {
	if 4*(r.count+1) > 3*len(r.index) {
		old := r.index
		r.index = make([]uint64, max(16, 2*len(old)))
		for _, place := range old {
			if place != 0 {
				r.index[r.empty(uint32(place>>32))] = place
			}
		}
		grown := r.index
		r.seen.Store(&grown)
	}
	r.count++
	atomic.StoreUint64(&r.index[r.empty(hash)], uint64(hash)<<32|uint64(ref))
}

func (r *records) empty(hash uint32) uint32 {
	mask := uint32(len(r.index) - 1)
	i := hash & mask
	for r.index[i] != 0 {
		i = (i + 1) & mask
	}
	return i
}

// leave removes a record from the index. It moves later elements into the gap, so that no search ends too
// early.
func (r *records) leave(hash uint32, ref recordRef) {
	mask := uint32(len(r.index) - 1)
	hole := hash & mask
	for recordRef(r.index[hole]) != ref {
		hole = (hole + 1) & mask
	}
	for i := (hole + 1) & mask; r.index[i] != 0; i = (i + 1) & mask {
		if home := uint32(r.index[i]>>32) & mask; (i-home)&mask >= (i-hole)&mask { // the element may move to the hole, because a search for its record starts at or before the hole
			atomic.StoreUint64(&r.index[hole], r.index[i])
			hole = i
		}
	}
	atomic.StoreUint64(&r.index[hole], 0)
	r.count--
}

func (r *records) at(ref recordRef) *record {
	i := uintptr(ref - 1)
	return &r.chunks[i/recordsPerChunk][i%recordsPerChunk]
}

func (r *records) newRecord() recordRef {
	if ref := r.free; ref != 0 {
		r.free = r.at(ref).next
		return ref
	}
	if r.everUsed == len(r.chunks)*int(recordsPerChunk) {
		r.chunks = append(r.chunks, new([recordsPerChunk]record))
	}
	r.everUsed++
	return recordRef(r.everUsed)
}

const minute = 60 * algorithms.Second

// takeOnce decides a group, or repeats its stored decisions. It holds the lock of a stripe of records during the
// decision. hash is the hash of the first key.
func (s *Store) takeOnce(now algorithms.Micros, hash uint64, charges []backend.Charge, decisions []backend.Decision) {
	once, n := charges[0].IdempotencyKey, len(charges)
	r, at := s.recordsOf(&once.ID)
	r.mu.Lock()
	defer r.mu.Unlock()
	s.sweepRecordsOf(r, now)
	ref, expiredRoom := r.find(at, &once.ID), 0 // the room of an expired record with the same ID
	if ref != 0 {
		was := r.at(ref)
		if now < was.until {
			r.answer(was, once, decisions)
			return
		}
		expiredRoom = int(was.n)
	}
	if n > expiredRoom && !s.roomForRecords(n-expiredRoom, now) { // The room is reserved first. A group that consumed units without a stored decision could consume again.
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
	kept := backend.ConsumedAny(charges, decisions)
	if kept {
		if ref == 0 {
			ref = r.newRecord()
			r.enter(at, ref)
			r.link(ref, now+once.Lifetime)
		}
		r.keep(ref, once, now+once.Lifetime, decisions)
	}
	held := expiredRoom
	if kept {
		held = n
	}
	if unused := max(n, expiredRoom) - held; unused > 0 {
		s.room.give(recordsOwner, unused)
	}
}

// roomForRecords reserves room for n decisions, and reports whether there is room. If there is none, it first deletes
// the expired records, and then a few buckets that equal new ones.
func (s *Store) roomForRecords(n int, now algorithms.Micros) bool {
	take := func() bool { return s.room.take(recordsOwner, n) }
	if take() {
		return true
	}
	s.sweepRecords(now)
	return take() || s.sweepSome(nil, now, nil, take)
}

// keep stores the decisions of a group in a record, which is new or has expired.
func (r *records) keep(ref recordRef, once *backend.IdempotencyKey, until algorithms.Micros, decisions []backend.Decision) {
	of := func(d *backend.Decision) decision { return decision{d.Decision, d.At} }
	is := r.at(ref)
	if is.n > 1 {
		delete(r.others, once.ID)
	}
	*is = record{once.ID, once.Digest, until, of(&decisions[0]), int32(len(decisions)), is.next}
	if len(decisions) > 1 {
		if r.others == nil {
			r.others = map[[16]byte][]decision{}
		}
		others := make([]decision, 0, len(decisions)-1)
		for i := range decisions[1:] {
			others = append(others, of(&decisions[1+i]))
		}
		r.others[once.ID] = others
	}
}

// link lists a record to be swept in the first whole minute after until.
func (r *records) link(ref recordRef, until algorithms.Micros) {
	if r.due == nil {
		r.due = map[algorithms.Micros]recordRef{}
	}
	last := until/minute + 1
	r.at(ref).next, r.due[last] = r.due[last], ref
}

func (r *records) answer(was *record, once *backend.IdempotencyKey, decisions []backend.Decision) {
	if was.digest != once.Digest || int(was.n) != len(decisions) {
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

// sweepRecords deletes the expired records, except for those of stripes that are locked.
func (s *Store) sweepRecords(now algorithms.Micros) {
	for i := range s.records {
		if r := &s.records[i]; r.mu.TryLock() {
			s.sweepRecordsOf(r, now)
			r.mu.Unlock()
		}
	}
}

// sweepRecordsOf deletes the expired records of a stripe, at most once a minute. r.mu is held.
func (s *Store) sweepRecordsOf(r *records, now algorithms.Micros) {
	if r.lastSweepMinute == now/minute {
		return
	}
	r.lastSweepMinute = now / minute
	gone := 0
	for last, ref := range r.due {
		if last > r.lastSweepMinute {
			continue
		}
		for ref != 0 {
			is := r.at(ref)
			next := is.next
			if is.until > now { // a later group had the same ID
				r.link(ref, is.until)
			} else {
				gone += int(is.n)
				s.forget(r, ref)
			}
			ref = next
		}
		delete(r.due, last)
	}
	if gone > 0 {
		s.room.give(recordsOwner, gone)
	}
}

// forget deletes a record. r.mu is held.
func (s *Store) forget(r *records, ref recordRef) {
	is := r.at(ref)
	_, hash := s.recordsOf(&is.id)
	r.leave(hash, ref)
	if is.n > 1 {
		delete(r.others, is.id)
	}
	is.next, r.free = r.free, ref
}
