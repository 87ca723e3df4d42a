package memory

import (
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// table is a hash table of buckets: an index of 4-byte references, probed linearly, into chunks of entries
// that never move. A bucket needs 64 bytes for its entry and 5 to 11 for the index, plus its key. In a Go map
// it needs 84 to 134 bytes (Go 1.26), and the map moves entries when it grows.
type table struct {
	view
	seen     atomic.Pointer[view] // the published view, for readers without the lock
	everUsed int
	free     []uint32
	count    int
}

// view is what a search for an entry needs. Function touch reads a view without the lock, so everything that
// touch reads is written atomically.
type view struct {
	index  []uint32 // refs; 0 means empty. Its length is a power of two
	chunks []*[chunkSize]entry
}

func (t *table) publish() {
	v := t.view
	t.seen.Store(&v)
}

// chunkSize makes a chunk 32 KiB long. For smaller allocations the runtime adds a header of 8 bytes, so
// that each entry would span two cache lines, and rounds the size up by an eighth.
const chunkSize = 512

// A ref is 1 + the number of an entry, with 8 bits of its hash in the upper bits. These bits rule out most
// other keys without reading their entries, which saves cache misses.
const (
	refBits    = 24
	refMask    = 1<<refBits - 1
	maxEntries = refMask - 1
)

func ref(hash uint32, n int) uint32 { return hash&^refMask | uint32(n+1) }

func (v *view) at(ref uint32) *entry { return v.entry(int(ref&refMask) - 1) }

// entry is one bucket. It is unused if by is nil.
type entry struct {
	key   atomic.Pointer[byte] // the bytes of name
	by    *algorithms.Limit
	value int64
	prev  int64
	at    algorithms.Micros
	more  *more
	size  uint32 // the length of name
	hash  uint32
	owner uint32
}

func (e *entry) name() string { return unsafe.String(e.key.Load(), e.size) }

func (e *entry) setName(s string) {
	e.size = uint32(len(s))
	if s == "" {
		e.key.Store(nil)
	} else {
		e.key.Store(unsafe.StringData(s))
	}
}

// more has the parts of a state that few buckets need.
type more struct {
	log     []algorithms.Micros
	denials *algorithms.Denials // of a limit with a penalty
	peaks   *algorithms.Peaks   // of a limit that settles
	slots   *algorithms.Slots   // of a concurrency limit
	open    *algorithms.Open    // of a limit that settles by bucket
}

// copy writes the stored state to s, which must be zero.
func (e *entry) copy(s *algorithms.State) {
	s.By, s.Value, s.Prev, s.At = e.by, e.value, e.prev, e.at
	if e.more != nil {
		s.Log, s.Denials, s.Peaks, s.Slots, s.Open = e.more.log, e.more.denials, e.more.peaks, e.more.slots, e.more.open
	}
}

func (e *entry) state() (s algorithms.State) {
	e.copy(&s)
	return s
}

func (e *entry) set(s *algorithms.State) {
	e.by, e.value, e.prev, e.at = s.By, s.Value, s.Prev, s.At
	switch {
	case len(s.Log) == 0 && s.Denials == nil && s.Peaks == nil && s.Slots == nil && s.Open == nil:
		e.more = nil
	case e.more != nil:
		*e.more = more{fitted(s.Log), s.Denials, s.Peaks, s.Slots, s.Open}
	default:
		e.more = &more{fitted(s.Log), s.Denials, s.Peaks, s.Slots, s.Open}
	}
	s.Slots.Apply()
}

// fitted returns log. If its array has room for many more times than log has, log gets a new array.
func fitted(log []algorithms.Micros) []algorithms.Micros {
	if cap(log) > 3*len(log)+8 {
		return slices.Clone(log)
	}
	return log
}

// peaksRoom is the number of entries that Peaks count as. They need 128 bytes; a bucket without Peaks needs
// about 70, plus its key.
const peaksRoom = 2

// openRoom is the number of entries that Open counts as. It needs 416 bytes.
const openRoom = 6

// extra returns the room that s needs beyond that of one bucket.
func extra(s *algorithms.State) int {
	n := len(s.Log)
	if s.Denials != nil {
		n += 1 + len(s.Denials.Times)
	}
	if s.Peaks != nil {
		n += peaksRoom
	}
	if s.Open != nil {
		n += openRoom
	}
	if s.Slots != nil {
		n += int(s.Prev)
	}
	return n
}

func (e *entry) extra() int {
	if e.more == nil {
		return 0
	}
	s := e.state()
	return extra(&s)
}

// slot returns the part of a hash that the index uses. The rest of the hash selects the stripe.
func slot(hash uint64) uint32 { return uint32(hash >> 32) }

func (t *table) size() int { return t.everUsed }

func (v *view) entry(i int) *entry { return &v.chunks[i/chunkSize][i%chunkSize] }

func (t *table) find(hash uint64, key []byte) *entry {
	if len(t.index) == 0 {
		return nil
	}
	mask := uint32(len(t.index) - 1)
	h := slot(hash)
	for i := h & mask; t.index[i] != 0; i = (i + 1) & mask {
		if (t.index[i]^h)&^refMask != 0 {
			continue
		}
		if e := t.at(t.index[i]); e.hash == h && e.name() == string(key) {
			return e
		}
	}
	return nil
}

// insert adds an entry for a new key. The caller sets its state.
func (t *table) insert(hash uint64, key string) *entry {
	if 4*(t.count+1) > 3*len(t.index) {
		t.grow()
	}
	var n uint32
	if last := len(t.free) - 1; last >= 0 {
		n, t.free = t.free[last], t.free[:last]
	} else {
		n = uint32(t.everUsed)
		if t.everUsed == len(t.chunks)*chunkSize {
			t.chunks = append(t.chunks, new([chunkSize]entry))
			t.publish()
		}
		t.everUsed++
	}
	e := t.entry(int(n))
	e.setName(key)
	e.hash = slot(hash)
	t.link(e.hash, ref(e.hash, int(n)))
	t.count++
	return e
}

func (t *table) link(hash, ref uint32) {
	mask := uint32(len(t.index) - 1)
	i := hash & mask
	for t.index[i] != 0 {
		i = (i + 1) & mask
	}
	atomic.StoreUint32(&t.index[i], ref)
}

func (t *table) grow() {
	old := t.index
	t.index = make([]uint32, max(16, 2*len(old)))
	for _, ref := range old {
		if ref != 0 {
			t.link(t.at(ref).hash, ref)
		}
	}
	t.publish()
}

// remove deletes e. It moves later refs of the index into the gap, so that no search ends too early.
func (t *table) remove(e *entry) {
	mask := uint32(len(t.index) - 1)
	i := e.hash & mask
	for t.at(t.index[i]) != e {
		i = (i + 1) & mask
	}
	t.free = append(t.free, t.index[i]&refMask-1)
	t.count--
	e.setName("")
	e.set(&algorithms.State{})
	hole := i
	for j := (i + 1) & mask; t.index[j] != 0; j = (j + 1) & mask {
		home := t.at(t.index[j]).hash & mask
		if (j-home)&mask >= (j-hole)&mask { // the ref may move to the hole, because a search for it starts at or before the hole
			atomic.StoreUint32(&t.index[hole], t.index[j])
			hole = j
		}
	}
	atomic.StoreUint32(&t.index[hole], 0)
}
