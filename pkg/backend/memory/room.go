package memory

import (
	"slices"
	"sync"
)

// room divides the bound of a Store among the limits, which own its buckets.
//
// Each listed limit has its own part of the bound, of size reserve. When it needs more, it uses a common pool. Other
// limits use only the pool. room changes when buckets are created, deleted or change their size, not with every charge.
//
// An owner that setOwners did not name, such as a limit that comes with a request, is forgotten when it holds
// nothing. So the number of owners is bounded, whatever names callers choose.
type room struct {
	most int // the bound

	mu      sync.Mutex
	names   map[string]uint32 // guarded by mu, like the following fields
	name    []string          // the name of each owner, by its number
	held    []int             // the room that each owner uses, by its number
	listed  []bool            // whether the owner has its own part, by its number
	free    []uint32          // numbers of forgotten owners
	divided bool              // setOwners was called: only the owners that it names have their own part
	reserve int               // the part of each listed owner
	pool    int               // the room used beyond the parts
	poolMax int
	total   int
}

func newRoom(most int) room {
	return room{
		most: most, poolMax: most, names: map[string]uint32{},
		name: []string{""}, held: []int{0}, listed: []bool{false},
	}
}

// recordsOwner is the owner of the results kept for idempotency keys. It has no part of its own.
const recordsOwner = 0

// owner returns the number of the owner with this name. For an owner that neither setOwners named nor holds room, it
// returns recordsOwner.
func (r *room) owner(name string) uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names[name]
}

// add adds an owner. mu is held.
func (r *room) add(name string, listed bool) (i uint32) {
	if last := len(r.free) - 1; last >= 0 {
		i, r.free = r.free[last], r.free[:last]
	} else {
		i = uint32(len(r.held))
		r.name, r.held, r.listed = append(r.name, ""), append(r.held, 0), append(r.listed, false)
	}
	r.names[name] = i
	r.name[i], r.listed[i] = name, listed
	return i
}

// forget removes an owner that holds nothing, unless setOwners named it. mu is held.
func (r *room) forget(owner uint32) {
	if r.held[owner] != 0 || owner == recordsOwner || r.divided && r.listed[owner] {
		return
	}
	delete(r.names, r.name[owner])
	r.name[owner] = ""
	r.free = append(r.free, owner)
	if r.listed[owner] {
		r.listed[owner] = false
		r.share()
	}
}

func (r *room) setOwners(names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.divided = true
	clear(r.listed)
	for _, name := range names {
		i, ok := r.names[name]
		if !ok {
			i = r.add(name, true)
		}
		r.listed[i] = true
	}
	for _, i := range r.names {
		r.forget(i)
	}
	r.share()
}

// share divides the bound among the owners. mu is held.
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

// beyond returns the room that owner uses beyond its own part.
func (r *room) beyond(owner uint32) int {
	if !r.listed[owner] {
		return r.held[owner]
	}
	return max(0, r.held[owner]-r.reserve)
}

// takeFor does what take does, for an owner given by name. It adds the owner if necessary.
func (r *room) takeFor(name string, n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	owner, ok := r.names[name]
	if !ok {
		owner = r.add(name, !r.divided)
		if !r.divided {
			r.share()
		}
	}
	taken := r.reserveFor(owner, n)
	if !taken {
		r.forget(owner)
	}
	return taken
}

// take reserves room for n more entries of owner, or returns false.
func (r *room) take(owner uint32, n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reserveFor(owner, n)
}

// reserveFor does what take does. mu must be held.
func (r *room) reserveFor(owner uint32, n int) bool {
	before := r.beyond(owner)
	r.held[owner] += n
	more := r.beyond(owner) - before
	if more > 0 && r.pool+more > r.poolMax || r.total+n > r.most+r.most/2 {
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
	r.forget(owner)
}

func (r *room) used() (used, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total, r.most
}

// scarce reports whether more than nine tenths of the pool are used, or whether one owner uses more than nine
// tenths of the bound.
func (r *room) scarce() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pool*10 > r.poolMax*9 || slices.ContainsFunc(r.held, func(n int) bool { return n*10 > r.most*9 })
}
