package algorithms

import "math"

// Peaks are stored for a limit that settles. They bound how much of a charge it may refund.
//
// A request consumes an estimate. When its cost is known, the difference is refunded. The bucket must then
// hold what it would hold if the difference had never been consumed. Without the difference the bucket
// would have been fuller, but never more than full: what did not fit would have been lost. So:
//
//	refund = min(difference, room);  room = V - the highest value since the charge
//
// V is the value of a full bucket. The value is highest just before a charge, or now. So a peak precedes
// each charge. A later peak with a higher value makes the earlier ones irrelevant, so each remaining peak has
// more room than the one before. A bucket keeps at most four peaks. When a fifth one comes, two neighbors
// become one peak with the time of the later one and the room of the earlier one. This merging can make a
// refund smaller, never larger.
//
// A refund raises the peaks since its charge, which reduces later refunds. Example: two requests consume 50
// units each. At one moment after both charges, the bucket was only 60 units below full. So both requests
// together get back at most 60 units, not 100.
//
// A new bucket, and a bucket that was reset, counts as full at its first charge, because the charges before
// it are unknown. For the same reason, a bucket counts as full after a limit that does not settle charged it,
// after its unit of time changed, and after its clock stepped back by more than a minute.
//
// A fixed window gains nothing until it ends, and refunds nothing afterwards. So the bucket of a fixed window
// stores one peak: the time since which its charges are known.

const (
	mostPeaks = 4
	// maxOpen bounds how long earlier charges still get no refund after a clock stepped back.
	maxOpen = 3600 * Second
)

// Peak is for Stores, which save and load peaks. It is a moment before which a bucket was fuller than at any
// time since.
type Peak struct {
	// Until is the moment. The peak reduces the refunds of charges that were made before Until.
	//
	// It is the start of a tick: the unit of time in which the limit counts, a microsecond or a millisecond.
	// The peak before a charge has the tick of the charge. The peak after a refund, or after charges that are
	// unknown, has the next tick, because a charge in the same tick may have come first.
	Until Micros
	// Room is the amount by which the bucket was below full, in the unit of State.Value.
	Room int64
}

// Peaks is for Stores. It has the last peaks of a bucket, oldest first. Each has more room than the one before.
// Peaks are immutable: a new State gets a new *Peaks.
type Peaks struct {
	n    int
	list [mostPeaks]Peak
}

// noPeaks are the Peaks of a bucket that has never been charged.
var noPeaks = &Peaks{}

// NewPeaks returns the Peaks of a State that was saved elsewhere. list is what All returned. If list is nil,
// the result is nil: the peaks are unknown, and settlements of earlier charges refund nothing.
func NewPeaks(list []Peak) *Peaks {
	if list == nil {
		return nil
	}
	p := &Peaks{}
	for _, peak := range list {
		p.push(peak.Until, peak.Room)
	}
	return p
}

// All returns the peaks, oldest first. It returns nil if p is nil.
func (p *Peaks) All() []Peak {
	if p == nil {
		return nil
	}
	return p.list[:p.n]
}

// peaked returns the peaks of a bucket of l after charge a at time t. p has the peaks before the charge. For p and
// for the result, nil means that the peaks are unknown. was is how far the bucket was below full before the charge,
// and room is how far it is below full after it.
func (l *Limit) peaked(p *Peaks, t Micros, was, room int64, a *Charge) *Peaks {
	t = l.tickOf(t)
	var next Peaks
	switch {
	case was == room:
		return p
	case p == nil && room < was: // a refund; the peaks stay unknown
		return nil
	case p == nil:
		next.push(t+l.tick, 0)
	case p.n > 0 && l.Kind == FixedWindow:
		return p
	case p.n == 0:
		next.push(t, 0)
	case room < was:
		if next = *p; a.ChargedAt > 0 {
			next.lower(l.tickOf(a.ChargedAt), was-room)
		}
		next.push(t+l.tick, room)
	default:
		next = *p
		next.push(t, was)
	}
	return &next
}

// push adds a peak. It drops the earlier peaks that the new one makes irrelevant, and merges two peaks if
// there are more than mostPeaks.
func (p *Peaks) push(until Micros, room int64) {
	if p.n > 0 && p.list[p.n-1].Until >= until {
		if p.list[p.n-1].Room <= room {
			return
		}
		until = p.list[p.n-1].Until
	}
	for p.n > 0 && p.list[p.n-1].Room >= room {
		p.n--
	}
	if p.n == mostPeaks {
		i := p.closest(room)
		least := p.list[i].Room
		copy(p.list[i:], p.list[i+1:])
		p.n--
		p.list[p.n] = Peak{until, room}
		p.list[i].Room = least
		p.n++
		return
	}
	p.list[p.n] = Peak{until, room}
	p.n++
}

// lower subtracts units from the room of all peaks after since. p then describes the bucket as if a charge of these
// units at the time since had never been made.
func (p *Peaks) lower(since Micros, units int64) {
	was := *p
	p.n = 0
	for _, peak := range was.All() {
		if peak.Until > since {
			peak.Room -= units
		}
		p.push(peak.Until, peak.Room)
	}
}

// closest returns the index of the peak to merge with its successor when a fifth peak with the given room
// comes. The merged peak has the smaller room of the two, so closest selects the two rooms that differ least. It
// compares their ratios, not their differences: a peak reduces only refunds that are larger than its room, so the
// same difference matters less between large rooms. Every machine computes the same ratios, because the quotient
// of two exact integers is the same double everywhere.
func (p *Peaks) closest(room int64) (i int) {
	least := math.Inf(1)
	for j := range mostPeaks {
		next := room
		if j+1 < mostPeaks {
			next = p.list[j+1].Room
		}
		if ratio := float64(next) / float64(p.list[j].Room); ratio <= least {
			i, least = j, ratio
		}
	}
	return i
}

// charged returns what a bucket with the given value holds after a settlement charges cost. The charge does not take the
// bucket below -MaxDebt; lost is the number of units not charged, rounded up. value and next are in 1/q token, cost is in
// units.
func (l *Limit) charged(value, cost int64) (next, lost int64) {
	next = max(min(value, -l.MaxDebt*l.q), value-min(cost, l.Capacity+l.MaxDebt)*l.q)
	return next, min(cost, maxExact) - (value-next)/l.q
}

// roomSince returns the smallest amount by which a bucket was below full at any moment since a charge at the time
// since. s is its State, and room is how far the bucket is below full now. The result is 0 if s does not contain
// that charge.
func (l *Limit) roomSince(s *State, since Micros, room int64) int64 {
	since = l.tickOf(since)
	if since > s.At || s.Peaks == nil || s.Peaks.n == 0 {
		return 0
	}
	for _, p := range s.Peaks.All() {
		if p.Until > since { // a later peak has more room
			return min(room, p.Room)
		}
	}
	return room
}

// beyond reports whether a is a settlement that charges units beyond the estimate.
func (l *Limit) beyond(a *Charge) bool { return l.Settles && a.Settle && a.Cost > 0 && !a.Scaled }

// passed returns the peaks of a bucket after its clock stepped back from charged, the time of its last charge, to now.
// They state that the bucket was full after charged, or after now + maxOpen if that is earlier. So no charge up to
// that moment gets a refund.
func (l *Limit) passed(charged, now Micros) *Peaks {
	var p Peaks
	p.push(min(charged, l.tickOf(now+maxOpen))+l.tick, 0)
	return &p
}

// peaksOf returns the peaks of s in the numbers of s.By. It returns nil if they are unknown, if l does not settle, or if
// l cannot use them because the two limits have different ticks or windows.
func (l *Limit) peaksOf(s *State, hash uint64) *Peaks {
	old := s.By
	if !l.Settles || l.tick != old.tick || l.Kind == FixedWindow &&
		(l.period != old.period || l.phaseOf(hash) != old.phaseOf(hash) || !l.Calendar.same(old.Calendar)) {
		return nil
	}
	return s.Peaks
}

// adoptPeaks converts the peaks of s from the numbers of s.By to those of l. Rooms are rounded down.
func (l *Limit) adoptPeaks(s *State, hash uint64) *Peaks {
	p, old := l.peaksOf(s, hash), s.By
	if p == nil || l.Kind == FixedWindow {
		return p
	}
	var next Peaks
	for _, peak := range p.All() {
		room, _ := mulDiv(peak.Room, l.q, old.q)
		next.push(peak.Until, room)
	}
	return &next
}
