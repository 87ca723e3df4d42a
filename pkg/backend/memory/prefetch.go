package memory

import (
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// atOnce is the number of charges that touch reads together. A processor core can have about a dozen
// memory reads in flight.
const atOnce = 16

// touch reads the memory that the decisions on charges will need, so that it is in the processor's cache.
// It also stores the hashes of the keys in hashes.
//
// With many buckets, each step from the index to the entry to the key waits for memory, and so does a search
// for a record. touch does each step for all charges, so the waits overlap. Under the locks they could not
// overlap, because acquiring a lock waits for earlier reads.
//
// The values may change before the decision and are not used. The result only prevents the compiler from
// removing the reads.
func (s *Store) touch(charges []backend.Charge, hashes *[atOnce]uint64) (read byte) {
	var places [atOnce]struct {
		view *view
		hash uint32
		ref  uint32
	}
	var keys [atOnce]*byte
	charges = charges[:min(len(charges), atOnce)]
	for i := range charges {
		hash := s.hash(charges[i].Key)
		hashes[i] = hash
		places[i].view, places[i].hash = s.stripe(hash).table.seen.Load(), slot(hash)
	}
	for i := range charges {
		if p := &places[i]; p.view != nil {
			p.ref = p.view.probe(p.hash)
		}
	}
	for i := range charges {
		if once := charges[i].IdempotencyKey; once != nil {
			r, hash := s.recordsOf(&once.ID)
			read += byte(r.peek(hash))
		}
	}
	for i := range charges {
		if p := &places[i]; p.ref != 0 {
			keys[i] = p.view.peek(p.ref)
		}
	}
	for i := range charges {
		if keys[i] != nil {
			read += *keys[i]
		}
	}
	return read
}

// probe returns the ref that a search by find would compare first, or 0 if there is none. It searches only the
// first 8 places.
func (v *view) probe(h uint32) uint32 {
	mask := uint32(len(v.index) - 1)
	for i := range uint32(8) {
		r := atomic.LoadUint32(&v.index[(h+i)&mask])
		if r == 0 || (r^h)&^refMask == 0 {
			return r
		}
	}
	return 0
}

// peek returns the key of a ref's entry, or nil if the key is empty or the entry is in a chunk that v does not have.
func (v *view) peek(ref uint32) *byte {
	if n := int(ref&refMask) - 1; n/chunkSize < len(v.chunks) {
		return v.entry(n).key.Load()
	}
	return nil
}
