package algorithms

import "math"

// Peaks: what a limit that settles remembers, to know how much of a charge it may refund.
//
// A request consumes an estimate; when its cost is known, the difference is refunded. The bucket must then hold
// what it would hold if the difference had never been consumed. Without the charge the bucket would have been
// fuller by the difference, but never fuller than full, so that it would have lost what did not fit:
//
//	refund = min(difference, room);  room = V - the highest value since the charge
//
// The value is highest just before a charge, or now. So each charge is preceded by a peak. A later peak that is
// higher hides the earlier ones, so that the peaks that matter have more and more room. At most four are kept: where
// there would be five, two neighbors become one that has the time of the later and the room of the earlier, so that
// merging refunds less, never more.
//
// A refund raises the peaks since its charge, for those who are refunded next: two of 50 that were consumed together left
// room for 60 at one time, and 60 is what they get back, not 100.
//
// A new bucket, or one that was reset, lost the charge itself: it counts as full at its first charge. So does a bucket
// whose earlier peaks are unknown: it was charged by a limit that does not settle, counted in other units of time, or
// its clock stepped back.
//
// A fixed window gains nothing until it ends, and refunds nothing afterwards. It needs to remember only since when its
// charges are known.

const (
	// mostPeaks is the number of peaks that a bucket keeps.
	mostPeaks = 4
	// maxOpen is how long after a clock stepped back the earlier charges still count as unknown.
	maxOpen = 3600 * Second
)

// Peak is a moment at which a bucket was fuller than at any time since.
type Peak struct {
	// Until is the moment, the start of a tick; charges made before it have seen the peak. That of a refund is the
	// next tick, because charges made in the same tick may have preceded it.
	Until Micros
	// Room is how much the bucket lacked, in the unit of State.Value.
	Room int64
}

// Peaks are the last peaks of a bucket, oldest first, each with more room than the one before. Those of a State are
// made anew, never changed.
type Peaks struct {
	n    int
	list [mostPeaks]Peak
}

// noPeaks are those of a bucket that was never charged.
var noPeaks = &Peaks{}

// All returns the peaks, oldest first.
func (p *Peaks) All() []Peak {
	if p == nil {
		return nil
	}
	return p.list[:p.n]
}

// peaked returns the peaks of a bucket of l that lacked room before a at time at, and lacks other room now. p are its
// former peaks; nil if they are unknown.
func (l *Limit) peaked(p *Peaks, at Micros, room, now int64, a *Charge) *Peaks {
	at = l.tickOf(at)
	var next Peaks
	switch {
	case room == now:
		return p
	case p == nil && now < room: // refunded, and unknown still
		return nil
	case p == nil:
		next.push(at+l.tick, 0)
	case p.n == 0 && now < room, p.n > 0 && l.Kind == FixedWindow:
		return p
	case p.n == 0:
		next.push(at, 0)
	case now < room:
		if next = *p; a.ChargedAt > 0 {
			next.lower(l.tickOf(a.ChargedAt), room-now)
		}
		next.push(at+l.tick, now)
	default:
		next = *p
		next.push(at, room)
	}
	return &next
}

// push adds a peak.
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

// lower makes the peaks what they would be if units that were consumed at time of had never been: the bucket would
// have been fuller ever since.
func (p *Peaks) lower(of Micros, units int64) {
	was := *p
	p.n = 0
	for _, peak := range was.All() {
		if peak.Until > of {
			peak.Room -= units
		}
		p.push(peak.Until, peak.Room)
	}
}

// closest returns which of four peaks to merge with the next one, where a fifth with that room follows: the one whose
// room is the largest part of the next one's. A peak with more room than a refund costs nothing, so that the
// proportion counts, not the difference. The quotient of two exact integers is the same double everywhere.
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

// charged returns value, in 1/unit, less a cost that is charged down to -MaxDebt, and the units that are lost beyond that.
func (l *Limit) charged(value, unit, cost int64) (next, lost int64) {
	next = max(min(value, -l.MaxDebt*unit), value-min(cost, l.Capacity+l.MaxDebt)*unit)
	return next, min(cost, maxExact) - (value-next)/unit
}

// roomSince returns how much s, a State of l that lacks room at time now, has lacked at least ever since a charge was
// made. A charge that s does not contain has 0.
func (l *Limit) roomSince(s *State, of Micros, room int64) int64 {
	of = l.tickOf(of)
	if of > s.At || s.Peaks == nil || s.Peaks.n == 0 {
		return 0
	}
	for _, p := range s.Peaks.All() {
		if p.Until > of { // the earliest has the least
			return min(room, p.Room)
		}
	}
	return room
}

// beyond reports whether a charges, in a settlement, what the estimate left out.
func (l *Limit) beyond(a *Charge) bool { return l.Settles && a.Settle && a.Cost > 0 && !a.Scaled }

// passed are the peaks of a bucket last charged at time at, whose clock has stepped back to now: charges of before
// have seen it full.
func (l *Limit) passed(at, now Micros) *Peaks {
	var p Peaks
	p.push(min(at, l.tickOf(now+maxOpen))+l.tick, 0)
	return &p
}

// peaksOf are the peaks of s, in its own numbers, as far as they are of use for l: nil where the two limits count in
// other units of time, or have other windows.
func (l *Limit) peaksOf(s *State, hash uint64) *Peaks {
	old := s.By
	if !l.Settles || l.tick != old.tick || l.Kind == FixedWindow &&
		(l.period != old.period || l.phaseOf(hash) != old.phaseOf(hash) || !l.Calendar.same(old.Calendar)) {
		return nil
	}
	return s.Peaks
}

// adoptPeaks are the peaks of s, which is in other numbers, in those of l. What a bucket lacks is rounded down.
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
