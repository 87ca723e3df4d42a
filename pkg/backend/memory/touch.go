package memory

import (
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// atOnce is how many charges touch looks up together. A processor has about a dozen reads of memory under way.
const atOnce = 16

// touch reads what deciding on charges is going to read, so that it is in the processor's cache by then.
// With many buckets each step to one, from the index to the entry to the key, waits for memory; here each step is
// made for all charges, and the waits overlap. Behind the locks they could not: locking waits for what was
// read before. What is read may change meanwhile; nothing is concluded from it. The result is of
// no use but that the compiler cannot leave the reads out. The hashes of the keys are kept.
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

// probe is the ref that find would look at first, or 0.
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

// peek is the key of a ref's entry, if that is seen.
func (v *view) peek(ref uint32) *byte {
	if n := int(ref&refMask) - 1; n/chunkSize < len(v.chunks) {
		return v.entry(n).key.Load()
	}
	return nil
}
