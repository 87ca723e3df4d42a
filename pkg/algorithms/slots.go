package algorithms

import (
	"maps"
	"slices"
)

// A concurrency limit bounds the units in flight. A request takes a slot of its cost, and returns the slot when it is
// done. A slot that is neither returned nor renewed expires after the ttl, which is Limit.Period. At time t:
//
//	a slot counts while t < expiry
//	allowed = units of the other slots + cost <= capacity
//
// The state of a bucket is the set of its slots. There is no retry time, because nobody knows when slots are returned.
// If the clock stepped back by at most a minute, the last time applies. If it stepped back further, all slots
// expire earlier by the step.

// MaxSlots is the largest Capacity of a concurrency limit. A limit with Overdraw takes at most as many units.
const MaxSlots = 10_000

// These are the bounds of the ttl of a concurrency limit.
const (
	MinSlotTTL = Second
	MaxSlotTTL = Day
)

// SlotOp is what a Charge does with its slot.
type SlotOp uint8

// The operations. TakeSlot takes a slot, and replaces a slot with the same name. ReturnSlot removes a slot, and RenewSlot
// lets it expire later; they change nothing if the slot was returned or has expired, and Decision.Lost is then the Cost.
const (
	TakeSlot SlotOp = iota
	ReturnSlot
	RenewSlot
)

// Slot names the slot of a Charge. A slot is found only by the same name and Cost with which it was taken.
type Slot struct {
	ID   [16]byte
	Part uint8 // different for each slot with this ID
	Op   SlotOp
	TTL  Micros // of a renewal: the time until the slot expires
}

// Slots has the slots of one bucket. All States of the bucket share it. TakeAt only notes the change that it makes. A Store
// then calls Apply if it stores the State, and otherwise Drop.
type Slots struct {
	places map[slotName]int // the position of each slot in heap
	heap   []slot           // a binary heap, the earliest expiry first
	latest Micros           // no slot expires later
	change slotChange
}

type slotName struct {
	id    [16]byte
	part  uint8
	units uint16
}

type slot struct {
	name    slotName
	expires Micros
}

// slotChange lets all slots expire earlier by shift, removes the slots that expire at until or earlier, and removes the
// slot name. If expires is not 0, it then adds the slot again.
type slotChange struct {
	shift, until Micros
	name         slotName
	expires      Micros
}

// Clone returns a copy, for a State that is charged several times. s may be nil.
func (s *Slots) Clone() *Slots {
	if s == nil {
		return nil
	}
	c := *s
	c.places, c.heap = maps.Clone(s.places), slices.Clone(s.heap)
	return &c
}

// Apply makes the change that the last decision noted. s may be nil.
func (s *Slots) Apply() {
	if s == nil || s.change == (slotChange{}) {
		return
	}
	c := s.change
	s.change = slotChange{}
	if c.shift > 0 {
		s.latest -= c.shift
		for i := range s.heap {
			s.heap[i].expires -= c.shift
		}
	}
	for len(s.heap) > 0 && s.heap[0].expires <= c.until {
		s.remove(0)
	}
	if i, ok := s.places[c.name]; ok {
		s.remove(i)
	}
	if c.expires > 0 {
		s.latest = max(s.latest, c.expires)
		s.heap = append(s.heap, slot{c.name, c.expires})
		s.up(len(s.heap) - 1)
	}
	if cap(s.heap) > 4*len(s.heap)+64 {
		s.shrink()
	}
}

// shrink releases the memory of slots that the bucket had before.
func (s *Slots) shrink() {
	s.heap = slices.Clone(s.heap)
	s.places = make(map[slotName]int, len(s.heap)) // maps.Clone would keep the room
	for i := range s.heap {
		s.places[s.heap[i].name] = i
	}
}

// Drop forgets the change that the last decision noted. s may be nil.
func (s *Slots) Drop() {
	if s != nil {
		s.change = slotChange{}
	}
}

func (s *Slots) remove(i int) {
	delete(s.places, s.heap[i].name)
	last := len(s.heap) - 1
	moved := s.heap[last]
	if s.heap = s.heap[:last]; i < last {
		s.heap[i] = moved
		s.up(s.down(i))
	}
}

// up moves the slot at position i towards the top of the heap, to its place.
func (s *Slots) up(i int) {
	is := s.heap[i]
	for i > 0 && is.expires < s.heap[(i-1)/2].expires {
		s.put(i, s.heap[(i-1)/2])
		i = (i - 1) / 2
	}
	s.put(i, is)
}

// down moves the slot at position i away from the top, as far as slots below it expire earlier. It returns the new position.
func (s *Slots) down(i int) int {
	is := s.heap[i]
	for {
		next := 2*i + 1
		if next+1 < len(s.heap) && s.heap[next+1].expires < s.heap[next].expires {
			next++
		}
		if next >= len(s.heap) || is.expires <= s.heap[next].expires {
			s.heap[i] = is
			return i
		}
		s.put(i, s.heap[next])
		i = next
	}
}

func (s *Slots) put(i int, is slot) { s.heap[i], s.places[is.name] = is, i }

// expired returns the number and the units of the slots that have expired at time t, at position i of the heap and below.
func (s *Slots) expired(i int, t Micros) (n, units int64) {
	if i >= len(s.heap) || s.heap[i].expires > t {
		return 0, 0
	}
	n, units = 1, int64(s.heap[i].name.units)
	for child := 2*i + 1; child <= 2*i+2; child++ {
		more, of := s.expired(child, t)
		n, units = n+more, units+of
	}
	return n, units
}

// has reports whether the slot is there and has not expired at time t.
func (s *Slots) has(name slotName, t Micros) bool {
	i, ok := s.places[name]
	return ok && s.heap[i].expires > t
}

// lastExpiry returns a moment from which no slot counts. It is at if there is no slot. s may be nil.
func (s *Slots) lastExpiry(at Micros) Micros {
	if s == nil || len(s.heap) == 0 {
		return at
	}
	return s.latest
}

func (s Spec) checkSlots(add addError) {
	switch {
	case s.Capacity == nil:
		add("capacity", "is missing")
	case *s.Capacity < 1 || *s.Capacity > MaxSlots:
		add("capacity", "must be between 1 and %d for concurrency, but is %d", MaxSlots, *s.Capacity)
	}
	if s.Period < MinSlotTTL || s.Period > MaxSlotTTL {
		add("ttl", "must be between 1s and 1d")
	}
	for _, x := range [...]struct {
		field string
		set   bool
	}{
		{"rate", s.Rate != 0}, {"initial", s.Initial != nil}, {"max_reserved", s.MaxReserved != nil}, {"start", s.Start != nil},
		{"time_zone", s.Calendar != nil}, {"penalty", s.Penalty != nil}, {"guaranteed", s.Minimum != nil},
		{"settle", s.Settles}, {"max_debt", s.MaxDebt != nil},
	} {
		if x.set {
			add(x.field, "does not belong to algorithm concurrency")
		}
	}
}

// takeSlots decides a charge of a concurrency limit. In the State, Value is the number of units, and Prev the number of
// slots.
func (l *Limit) takeSlots(s *State, now Micros, a *Charge, d *Decision) {
	set, at, shift := s.Slots, now, Micros(0)
	if set == nil {
		set = &Slots{places: map[slotName]int{}}
	}
	if back := s.At - now; s.Prev > 0 && back > maxStepBack {
		shift = back
	} else if s.Prev > 0 && back > 0 {
		at = s.At
	}
	gone, goneUnits := set.expired(0, at+shift)
	slots, units, own := s.Prev-gone, s.Value-goneUnits, false
	var op SlotOp
	change := slotChange{shift: shift, until: at}
	if a.Slot != nil {
		op = a.Slot.Op
		change.name = slotName{a.Slot.ID, a.Slot.Part, uint16(max(0, min(a.Cost, MaxSlots+1)))}
		own = set.has(change.name, at+shift)
	}
	changes := own
	if own {
		slots, units = slots-1, units-a.Cost
	}
	switch {
	case op == TakeSlot:
		changes = l.takeSlot(units, a, d)
		change.expires = at + Micros(l.period)
	case op == RenewSlot:
		change.expires = at + a.Slot.TTL
		fallthrough
	default:
		d.Allowed = true
		if !own {
			d.Lost = max(0, a.Cost)
		}
	}
	if changes && change.expires > 0 || own && !changes {
		slots, units = slots+1, units+a.Cost
	}
	d.Value = l.Capacity - units
	d.Remaining = max(0, d.Value)
	if a.DryRun || a.Cost <= 0 {
		return
	}
	switch {
	case changes:
		s.Value, s.Prev, s.At, s.Slots = units, slots, at, set
		if set.change = change; op == TakeSlot {
			s.By, d.Lost = l, goneUnits
		}
	case s.Slots != nil:
		if set.change = (slotChange{shift: shift}); shift > 0 {
			s.At = at
		}
	}
}

// takeSlot decides whether a, of a bucket with units in other slots, takes its slot.
func (l *Limit) takeSlot(units int64, a *Charge, d *Decision) bool {
	if d.Allowed = a.Cost <= 0 || a.Cost <= l.Capacity-units; a.Slot == nil && !a.DryRun && a.Cost > 0 {
		d.Allowed, d.Never = false, true // nobody could return the slot
		return false
	}
	fits := d.Allowed || l.Overdraw && !a.Free && a.Cost <= MaxSlots-units
	d.Never = !d.Allowed && (a.Cost > l.Capacity || l.Overdraw) && !fits
	return fits && a.Cost > 0
}
