package memory

import (
	"slices"
	"sync"
)

// room divides the bound of a Store among the limits that own its buckets. Each limit has its own part, reserve.
// Room beyond that part comes from a common pool. It is used when buckets are created and deleted, not when they are
// charged.
type room struct {
	most int // the bound

	mu      sync.Mutex
	names   map[string]uint32 // guarded by mu, like the following fields
	held    []int             // by owner
	listed  []bool            // by owner: whether it has its own part
	reserve int               // the part of each listed owner
	pool    int               // the room used beyond the parts
	poolMax int
	total   int
}

func newRoom(most int) room {
	return room{most: most, poolMax: most, names: map[string]uint32{}, held: []int{0}, listed: []bool{false}}
}

// recordsOwner owns the results kept for idempotency keys. It has no part of its own.
const recordsOwner = 0

// owner returns the number of the owner with a name.
func (r *room) owner(name string) uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, ok := r.names[name]
	if !ok {
		i = r.add(name)
		r.share()
	}
	return i
}

func (r *room) add(name string) uint32 {
	i := uint32(len(r.held))
	r.names[name] = i
	r.held, r.listed = append(r.held, 0), append(r.listed, true)
	return i
}

func (r *room) setOwners(names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.listed)
	for _, name := range names {
		if i, ok := r.names[name]; ok {
			r.listed[i] = true
		} else {
			r.add(name)
		}
	}
	r.share()
}

// share divides the bound among the owners.
func (r *room) share() {
	n := 0
	for _, listed := range r.listed {
		if listed {
			n++
		}
	}
	r.reserve = r.most / 2 / max(1, n)
	r.poolMax = r.most - r.reserve*n
	r.pool = 0
	for i := range r.held {
		r.pool += r.beyond(uint32(i))
	}
}

// beyond is the room that owner uses beyond its own part.
func (r *room) beyond(owner uint32) int {
	if !r.listed[owner] {
		return r.held[owner]
	}
	return max(0, r.held[owner]-r.reserve)
}

// take reserves room for n more entries of owner, or returns false.
func (r *room) take(owner uint32, n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.beyond(owner)
	r.held[owner] += n
	more := r.beyond(owner) - before
	if more > 0 && r.pool+more > r.poolMax {
		r.held[owner] -= n
		return false
	}
	r.pool += more
	r.total += n
	return true
}

func (r *room) give(owner uint32, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.beyond(owner)
	r.held[owner] -= n
	r.pool += r.beyond(owner) - before
	r.total -= n
}

func (r *room) used() (used, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total, r.most
}

// scarce reports whether nine tenths of the pool are used, or of the pool and some owner's part together.
func (r *room) scarce() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pool*10 > r.poolMax*9 || slices.ContainsFunc(r.held, func(n int) bool { return n*10 > r.most*9 })
}
