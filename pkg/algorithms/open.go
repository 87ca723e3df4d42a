package algorithms

// A limit with OpenFor keeps its open reservations in the bucket, because the requests that settle them have no id. All
// that is known is how many there are, and how many units they have together. So the bucket has sums, each for the
// reservations of a sixteenth of OpenFor.
//
//	reserve:  the units are charged, and added to the newest sum
//	settle:   takes one reservation, of the mean units, out of the newest sum, and charges or refunds the difference. The last
//	          reservation of a sum has all units that are left. If none is open, the whole cost is charged
//	expiry:   OpenFor after the sixteenth of a sum has ended, its units are refunded, as a settlement would refund them
//
// The refunds of a sum are those of its first reservation (see Peaks). So they may be too small, never too large.

// maxOpenSums bounds the sums: sixteen for OpenFor, and one for the sixteenth in which they expire. If OpenFor becomes
// shorter, there may be more. Further reservations are then not open, so the whole cost is charged for them.
const (
	openParts   = 16
	maxOpenSums = openParts + 1
)

// These are the bounds of OpenFor.
const (
	MinOpenFor = Second
	MaxOpenFor = Day
)

// OpenSum has the open reservations since a time: their number and their units.
type OpenSum struct {
	Since        Micros
	Count, Units int64
}

// Open has the sums of a bucket, oldest first. It is immutable: a new State gets a new *Open.
type Open struct {
	n    int
	list [maxOpenSums]OpenSum
}

// All returns the sums, oldest first. o may be nil.
func (o *Open) All() []OpenSum {
	if o == nil {
		return nil
	}
	return o.list[:o.n]
}

// NewOpen returns the Open of a State that was saved elsewhere. list is what All returned, or empty.
func NewOpen(list []OpenSum) *Open { return openWith(list, OpenSum{}) }

// openWith returns the sums in list, and then last, if it has reservations. It returns nil if there are none.
func openWith(list []OpenSum, last OpenSum) *Open {
	if len(list) == 0 && last.Count <= 0 {
		return nil
	}
	next := &Open{}
	if next.n = copy(next.list[:], list); last.Count > 0 {
		next.list[next.n] = last
		next.n++
	}
	return next
}

// openPart returns the length of the time whose reservations have a sum.
func (l *Limit) openPart() Micros { return (l.OpenFor + openParts - 1) / openParts }

// openEnd returns the time at which a sum expires.
func (l *Limit) openEnd(sum OpenSum) Micros { return sum.Since + l.openPart() + l.OpenFor }

// takeOpen is TakeAt for a limit with OpenFor.
func (l *Limit) takeOpen(s *State, now Micros, a *Charge, d *Decision) {
	was, inner := *s, *a
	l.expireOpen(s, now, a.Hash)
	before := *s
	inner.inOpen = true
	var after *Open
	if a.Open {
		after = closeOpen(s.Open, &inner)
	}
	l.TakeAt(s, now, &inner, d)
	if !d.Allowed && !d.Never {
		d.RetryAfter = l.retryOpen(before, now, &inner, d.RetryAfter)
	}
	switch {
	case !a.Open || a.DryRun || !d.Allowed || a.Cost == 0 && !a.Settle:
		charged := a.Cost != 0 && !a.DryRun && d.Allowed // also a refund of nothing
		if s.Open = before.Open; !charged && s.By == before.By && s.At == before.At {
			*s = was // what has expired now expires again later
		}
	case a.Settle || a.Cost < 0:
		s.Open = after
	default:
		s.Open = l.addOpen(before.Open, s.At, a.Cost)
	}
}

// closeOpen returns the sums after charge a, if it settles or undoes a reservation, and makes a the charge or refund of
// the difference.
func closeOpen(open *Open, a *Charge) *Open {
	if !a.Settle && a.Cost >= 0 {
		return nil
	}
	var last OpenSum
	list := open.All()
	if n := len(list); n > 0 {
		last, list = list[n-1], list[:n-1]
	}
	units := int64(0)
	switch {
	case last.Count == 0:
	case !a.Settle:
		units = min(last.Units, -max(a.Cost, -maxExact))
	case last.Count == 1:
		units = last.Units
	default:
		units = last.Units / last.Count
	}
	if a.Settle {
		a.Cost, a.ChargedAt = max(0, min(a.Cost, maxExact))-units, last.Since
	} else {
		a.Cost = -units
	}
	last.Count, last.Units = last.Count-1, last.Units-units
	return openWith(list, last)
}

// addOpen returns the sums with a reservation of units at time now.
func (l *Limit) addOpen(open *Open, now Micros, units int64) *Open {
	list := open.All()
	n := len(list)
	switch {
	case units <= 0:
		return open
	case n > 0 && now < list[n-1].Since+l.openPart():
		last := list[n-1]
		last.Count, last.Units = last.Count+1, min(last.Units+units, maxExact)
		return openWith(list[:n-1], last)
	case n == maxOpenSums:
		return open
	default:
		return openWith(list, OpenSum{now, 1, units})
	}
}

// expireOpen refunds the sums that have expired by time now, each at the time at which it expired.
func (l *Limit) expireOpen(s *State, now Micros, hash uint64) {
	for list := s.Open.All(); len(list) > 0 && l.openEnd(list[0]) <= now; list = s.Open.All() {
		var d Decision
		refund := Charge{Cost: -list[0].Units, Hash: hash, ChargedAt: list[0].Since, Settle: true, inOpen: true}
		l.TakeAt(s, max(s.At, l.openEnd(list[0])), &refund, &d)
		s.Open = openWith(list[1:], OpenSum{})
	}
}

// retryOpen returns the time until charge a is allowed, if that is earlier than retry because reservations expire.
func (l *Limit) retryOpen(s State, now Micros, a *Charge, retry Micros) Micros {
	again := *a
	again.DryRun = true
	for list := s.Open.All(); len(list) > 0; list = s.Open.All() {
		wait := l.openEnd(list[0]) - now
		if retry <= wait {
			break
		}
		l.expireOpen(&s, now+wait, a.Hash)
		probe, d := s, Decision{}
		l.TakeAt(&probe, now+wait, &again, &d)
		retry = wait + d.RetryAfter
	}
	return retry
}
