package algorithms

import (
	"math/bits"

	"github.com/rlsidecar/rlsidecar/internal/scaled"
)

// This file applies a limit to a State that was written under other numbers: before a reload, or by a
// sidecar with another configuration.
//
//	used  = V - value'              in the old numbers, at the time of the request
//	value = V2 - ceil(used*q2/q)    in the new numbers
//
// V, value' and q are those of the old limit, V2 and q2 those of the new one (see level.go). Only an allowed
// charge converts a State, and only if no consumption is lost, that is if used <= V2. Until then the State stays in
// the old numbers and refills at the old rate. So a denial and a dry run lose nothing, and a client that polls is
// allowed at the same moment as a client that waits. Decisions are made with V2 - used. While that is below 0:
//
//	cost > 0    denied, unless it reserves and V2 - used - cost >= -max_reserved
//	cost = 0    allowed, unless the bucket is in debt by the old numbers too
//	retry_after until the same request would be allowed under these rules, if no other request came first
//
// A full bucket (used = 0) is decided in the new numbers. Before the conversion, used changes in the old numbers: a charge
// adds to used, and a refund subtracts from it. So two processes with different numbers never admit more than the larger
// limit. The same holds for a limit that is lowered and raised again.
//
// A limit with Initial below Capacity is a balance: units were put there, and what it lacks is not consumption. Its
// buckets keep their value, as far as it fits, and the first request converts them:
//
//	value = min(V2, floor(value'*q2/q))
//
// The counts of a sliding window and the times of a log need no conversion.

// sameScale reports whether State.Value and State.Prev have the same meaning under l and old, two Limits of
// the same Kind.
func (l *Limit) sameScale(old *Limit, hash uint64) bool {
	switch l.Kind {
	case TokenBucket, LeakyBucket, Guaranteed:
		return l.tick == old.tick && l.p == old.p && l.q == old.q && l.v == old.v && l.p1 == old.p1 && l.v1 == old.v1
	case FixedWindow:
		return l.tick == old.tick && l.Rate == old.Rate && l.period == old.period &&
			l.Capacity == old.Capacity && l.phaseOf(hash) == old.phaseOf(hash) && l.Calendar.same(old.Calendar)
	case SlidingWindow, SlidingLog:
		// A Store keeps a State only for as long as the Limit in s.By needs it. So of the two Limits, the one
		// with the longer period must be in s.By.
		return l.denialSpan() >= old.denialSpan()
	}
	return false
}

// converted returns s, written under another Limit of the same Kind, as a State of l at time now. most is the largest
// consumption in units that s can express without a conversion. ok is false if the conversion would lose consumption.
func (l *Limit) converted(s *State, now Micros, hash uint64) (next State, most int64, ok bool) {
	next = State{By: l, At: l.tickOf(now), Denials: s.Denials, Peaks: l.adoptPeaks(s, hash), Open: s.Open}
	k := l.consumed(s, now, hash)
	next.Value = l.convert(&k, k.old.v, l.v)
	if l.Kind == Guaranteed {
		k1 := l.keptTokens(s, s.Prev, s.By.v1, s.By.p1, now)
		next.Prev = l.convert(&k1, s.By.v1, l.v1)
	}
	if !l.startsFilled() && next.Peaks != nil && next.Peaks.n > 0 {
		// Without an earlier charge, the bucket would have been at most full now, under both limits.
		peaks, full := *next.Peaks, l.balance(k.old.v, k.unit, l.v)
		peaks.push(max(next.At, s.At+l.tick), max(0, full-next.Value))
		next.Peaks = &peaks
	}
	return next, k.most, next.Value >= 0 && next.Prev >= 0
}

// convert returns what a bucket of l with the consumption k holds. old and full are what it holds when full, in the old
// numbers and in those of l.
func (l *Limit) convert(k *kept, old, full int64) int64 {
	if l.startsFilled() {
		return full - k.units(l)
	}
	return l.balance(old-k.used, k.unit, full)
}

// takeConverted decides charge a for s, a State in the numbers of another Limit, if that charge converts it: the charge
// is allowed, and the conversion loses no consumption. Otherwise it reports false. A reservation with MaxWait that must
// wait converts nothing: see keptGoal. A denied charge that is made converts the State only if the old numbers cannot
// express it. For a full bucket, takeConverted decides nothing, and s becomes the converted State. was is the stored State,
// now is the time of the request, and at is the time of its decision.
func (l *Limit) takeConverted(s, was *State, now, at Micros, a *Charge, d *Decision) bool {
	next, most, ok := l.converted(s, at, a.Hash)
	if next.Value == l.v && next.Prev == l.v1 {
		*s = next
		return false
	}
	if !ok || a.Cost == 0 {
		return false
	}
	l.TakeAt(&next, now, a, d)
	waits := d.Wait > 0 && a.Reserve && a.MaxWait > 0 && l.Kind != LeakyBucket
	if waits || !d.Allowed && (!l.chargesDenied(a) || l.Capacity <= most) {
		*d = Decision{}
		return false
	}
	if *s = next; a.DryRun {
		*s = *was
	}
	return true
}

// balance converts value from the given unit to that of l, rounded down and at most full. A debt that the numbers of l
// cannot express becomes the largest that they can.
func (l *Limit) balance(value, unit, full int64) int64 {
	if value < 0 {
		return max(-mulDivCeil(-value, l.q, unit), -l.reach*l.q)
	}
	n, _ := mulDiv(value, l.q, unit)
	return min(full, n)
}

// kept is the consumption of a bucket whose State stays in the numbers of an old limit. In the comments of
// its methods, l is the new limit, and "the unit of l" is the unit of State.Value in the numbers of l.
type kept struct {
	old  *Limit
	unit int64 // how much of used is one unit
	most int64 // the largest consumption that the old numbers can express, in units
	used int64
	room int64 // for a limit that settles: the most that a refund with ChargedAt returns

	// For token buckets, tick is the longer of the two limits' ticks, now is the start of the tick that contains
	// the request, and p flows in with each tick. For fixed windows, now is the time of the request, and tick
	// and p are 0.
	now  Micros
	tick Micros
	p    int64

	// These are for fixed windows: the number of the window that contains the request, and the phase.
	window, phase int64
}

// consumed returns the consumption of a bucket at time now. Of a guaranteed bucket it is that of the bank.
func (l *Limit) consumed(s *State, now Micros, hash uint64) kept {
	if l.Kind == FixedWindow {
		return l.keptWindow(s, now, hash)
	}
	return l.keptTokens(s, s.Value, s.By.v, s.By.p, now)
}

// keptTokens returns the consumption of a token bucket, or of one part of a guaranteed bucket, at time now.
// value is what the bucket held at s.At and full is what it can hold; p flows in with each tick. All three are in
// the numbers of s.By. If one of the two limits counts in microseconds and the other in milliseconds, the
// result counts in milliseconds.
func (l *Limit) keptTokens(s *State, value, full, p int64, now Micros) kept {
	old := s.By
	k := kept{old: old, unit: old.q, most: (maxExact - old.p - old.p1) / old.q, used: full - value, p: p, tick: max(l.tick, old.tick)}
	if k.tick != old.tick {
		k.used = min(k.used+p*int64(s.At%k.tick), maxExact) // the consumption at the beginning of the tick that contains s.At
		k.p = min(p*int64(k.tick/old.tick), maxExact)
	}
	k.used = k.after(int64(now/k.tick - s.At/k.tick))
	k.now = now - now%k.tick
	return k
}

// after returns the consumption that will be left after the given number of ticks, if nothing more is
// charged.
func (k *kept) after(ticks int64) int64 {
	if hi, lo := bits.Mul64(uint64(ticks), uint64(k.p)); hi == 0 && lo < uint64(k.used) {
		return k.used - int64(lo)
	}
	return 0
}

func (l *Limit) keptWindow(s *State, now Micros, hash uint64) kept {
	old := s.By
	if old.Calendar != nil && !l.Calendar.same(old.Calendar) {
		old = old.outlived(s.At)
	}
	longest := old.period
	if old.Calendar != nil {
		longest = int64(old.Calendar.Longest)
	}
	k := kept{old: old, unit: 1, most: mostOfWindows(old.Rate, longest), now: now, phase: old.phaseOf(hash)}
	k.window = old.windowOf(now, k.phase)
	n := k.window - old.windowOf(s.At, k.phase)
	k.used = old.Capacity - s.Value
	switch {
	case n <= 0:
	case l.clears() || n >= ceilDiv(k.used, old.Rate): // compared first, because n * Rate could overflow
		k.used = 0
	default:
		k.used -= n * old.Rate
	}
	return k
}

// outlived returns a copy of l with windows of equal length in place of its Calendar.
//
// A limit that has left the configuration may have a Calendar. The Redis script does not have that calendar.
// The script has only the end of the window that contains t, and the length of the longest window in hours.
// So both implementations compute the windows of such a limit from these two numbers.
func (l *Limit) outlived(t Micros) *Limit {
	const hour = 3600 * Second
	plain := *l
	plain.Calendar, plain.length = nil, hour*Micros(ceilDiv(int64(l.Calendar.Longest), int64(hour)))
	plain.period = int64(plain.length)
	next := int64(l.Calendar.Start(l.Calendar.Window(t) + 1))
	plain.phase, plain.phaseFromKey = next-floorDiv(next, plain.period)*plain.period, false
	return &plain
}

// units returns the consumption in the unit of l, rounded up.
func (k *kept) units(l *Limit) int64 { return mulDivCeil(k.used, l.q, k.unit) }

// of converts units, an amount in the unit of l, to the unit of k.used. The result is rounded down.
func (k *kept) of(l *Limit, units int64) int64 {
	n, _ := mulDiv(units, k.unit, l.q)
	return n
}

// until returns the time from now until the consumption does not exceed bound, which is in the unit of l.
func (k *kept) until(l *Limit, now Micros, bound int64) Micros {
	return k.untilUsed(l, now, k.of(l, bound))
}

// untilUsed returns the time from now until k.used, without further charges, does not exceed bound. bound is in
// the unit of k.used. For a fixed window, the result is at least the time until the next window starts.
func (k *kept) untilUsed(l *Limit, now Micros, bound int64) Micros {
	if l.Kind != FixedWindow {
		return max(0, k.moment(k.ticksTo(bound))-now)
	}
	n := ceilDiv(k.used-bound, k.old.Rate)
	if l.clears() {
		n = min(n, 1)
	}
	return k.old.windowStart(k.window+max(1, n), k.phase) - now
}

func (k *kept) ticksTo(bound int64) int64 { return max(0, ceilDiv(k.used-bound, k.p)) }

func (k *kept) moment(n int64) Micros { return k.now + Micros(n)*k.tick }

// giveBack subtracts the refund of charge a from k.used. p flows in with each tick of k. For an undo (see
// Charge.ChargedAt), the inflow since the charge is not refunded. If the limit settles, an undo refunds at most k.room
// instead.
func (k *kept) giveBack(l *Limit, p int64, a *Charge) { k.used -= min(k.used, k.given(l, p, a)) }

func (k *kept) given(l *Limit, p int64, a *Charge) int64 {
	units := -max(a.Cost, -maxExact)
	given := min(units, k.most) * k.unit
	if a.Scaled {
		given = k.of(l, units)
	}
	switch {
	case a.ChargedAt > 0 && l.Settles:
		return min(given, k.room)
	case a.ChargedAt > 0 && k.tick > 0:
		return scaled.Returned(given, p, int64(k.now/k.tick-a.ChargedAt/k.tick))
	}
	return given
}

// takeKept decides charge a at time now for a State that is expressed in the numbers of another Limit. After a clock
// stepped back, now is the time of the last charge, and lag is how far the clock is behind it; otherwise lag is 0.
func (l *Limit) takeKept(s *State, now Micros, a *Charge, d *Decision, lag Micros) {
	if l.Kind == Guaranteed {
		l.takeKeptPair(s, now, a, d)
		return
	}
	k := l.consumed(s, now, a.Hash)
	s.Peaks = l.peaksOf(s, a.Hash)
	if s.By != k.old { // keptWindow replaced the old limit, because its Calendar is not configured any more
		s.By, s.Peaks = k.old, nil
	}
	had := k.used
	k.room = k.old.roomSince(s, a.ChargedAt, had)
	l.decideKept(&k, now, a, d, lag)
	if l.Settles && !a.DryRun {
		s.Peaks = k.old.peaked(s.Peaks, k.now, had, k.used, a)
	}
	s.Value, s.At = k.old.v-k.used, k.old.tickOf(k.now)
	d.Value = l.v - k.units(l)
	d.Remaining = max(0, floorDiv(d.Value, l.q))
	d.ResetAfter = k.until(l, now, 0)
}

// decideKept decides charge a for a token bucket, a fixed window or a leaky bucket. k is the consumption at time now, and
// lag is that of takeKept.
func (l *Limit) decideKept(k *kept, now Micros, a *Charge, d *Decision, lag Micros) {
	unit, full := l.q, l.v
	cost, r := l.costIn(a), int64(0)
	if a.Reserve {
		r = l.MaxReserved
	}
	goal, late, denied := l.keptGoal(k, full+r*unit-cost, now, a, d, lag)
	switch {
	case denied:
	case cost < 0:
		if !k.old.windowOver(a, now) {
			k.giveBack(l, k.p, a)
		}
		d.Allowed = true
	case l.beyond(a):
		most := (l.Capacity + min(l.MaxDebt, k.most-l.Capacity)) * k.unit
		most, had := max(k.used, most), k.used
		wanted, _ := mulDiv(min(a.Cost, l.Capacity+l.MaxDebt), k.unit, 1)
		k.used = min(most, k.used+wanted)
		d.Allowed, d.Lost = true, min(a.Cost, maxExact)-(k.used-had)/k.unit
	case cost == 0 && !late:
		debt := max(k.of(l, goal), k.old.v) // more consumption than this is a debt by the old numbers too
		if d.Allowed = k.used <= debt; !d.Allowed {
			d.RetryAfter = k.untilUsed(l, now, debt)
		}
	case goal >= full && k.used <= k.of(l, goal):
		k.used += mulDivCeil(cost, k.unit, unit)
		d.Allowed, d.Wait = true, k.until(l, now, full)
	case l.chargesDenied(a):
		k.used = min(max(k.used, (l.Capacity+k.debt(l))*k.unit), k.used+mulDivCeil(cost, k.unit, unit))
		if d.Never = l.TakesDenied && cost > full; !d.Never {
			d.RetryAfter = k.until(l, now, max(0, goal))
		}
	case cost > full+r*unit || goal < 0:
		d.Never = true
	default:
		d.RetryAfter = k.until(l, now, goal)
	}
}

// debt returns, in units, the largest debt that l allows and the old numbers can express.
func (k *kept) debt(l *Limit) int64 { return max(0, min(l.MaxReserved, k.most-l.Capacity)) }

// keptGoal returns the largest consumption with which charge a is allowed, and whether its turn in a leaky bucket is later
// than a accepts. goal is that consumption without a bound on waits. If a is denied only until the clock has caught up,
// keptGoal reports that, and sets d.RetryAfter.
func (l *Limit) keptGoal(k *kept, goal int64, now Micros, a *Charge, d *Decision, lag Micros) (_ int64, late, denied bool) {
	switch {
	case a.Cost < 0:
	case l.Kind == LeakyBucket:
		if a.Cost == 0 {
			goal = maxExact // it needs no room
		}
		used := k.units(l)
		wait := l.span(now, ceilDiv(used, l.p))
		late = a.MaxWait > 0 && wait > 0 && wait+lag > a.MaxWait
		if denied = late && wait <= a.MaxWait && used <= goal; denied {
			d.RetryAfter = wait - a.MaxWait
		} else if a.MaxWait > 0 {
			// Within a tick the wait becomes shorter, but the next tick may begin with the same wait again. So RetryAfter
			// ends where a tick begins with a wait that is short enough, which is at most a tick too late.
			goal = min(goal, l.inflowIn(a.MaxWait))
		}
		if a.Cost == 0 && !late {
			d.Wait = wait
		}
	case a.Reserve && a.MaxWait > 0:
		// How fast the debt shrinks depends on the limit that charges next. So a charge with MaxWait is allowed only with a
		// conversion, and when its wait is as short as it can be: 0, unless the cost is above the capacity.
		if goal = l.v - l.costIn(a); goal+l.inflowIn(a.MaxWait) >= 0 {
			goal = max(0, goal)
		}
	case a.Reserve:
		goal = max(min(goal, l.v), l.v+k.debt(l)*l.q-l.costIn(a))
	}
	return goal, late, denied
}

// takeKeptPair is takeKept for a guaranteed bucket. It counts the two parts separately, so that a smaller bank
// does not reduce the guaranteed rate. Both parts together never admit more than the larger of the two limits
// holds.
func (l *Limit) takeKeptPair(s *State, now Micros, a *Charge, d *Decision) {
	old := s.By
	k1, k2 := l.keptTokens(s, s.Prev, old.v1, old.p1, now), l.keptTokens(s, s.Value, old.v, old.p, now)
	larger, _ := mulDiv(l.Capacity, old.q, 1)
	pair := keptPair{k1, k2, min(max(larger, old.v+old.v1), k2.most*k2.unit)}
	switch {
	case a.Cost < 0:
		pair.giveBack(l, a)
		d.Allowed = true
	case a.Cost > l.Capacity:
		d.Never = true
	default:
		n, v1, _ := pair.left(l, 0)
		if d.Allowed = n >= a.Cost; d.Allowed {
			pair.pay(l, v1, a.Cost)
		} else {
			d.RetryAfter = pair.until(l, a.Cost) - now
		}
	}
	s.Prev, s.Value, s.At = old.v1-pair.sure.used, old.v-pair.bank.used, k1.now
	n, v1, v2 := pair.left(l, 0)
	d.Value, d.Remaining = v1+v2, n
	d.ResetAfter = max(0, pair.until(l, l.Capacity)-now)
}

// keptPair is the consumption of the two parts of a guaranteed bucket: sure is the guaranteed part.
type keptPair struct {
	sure, bank kept
	most       int64 // the largest consumption of both together, in the unit of kept.used
}

// left returns the number of units that are available after the given number of ticks of p, and what the parts then hold
// in the numbers of l.
func (p *keptPair) left(l *Limit, ticks int64) (n, v1, v2 int64) {
	then := *p
	then.sure.used, then.bank.used = p.sure.after(ticks), p.bank.after(ticks)
	v1, v2 = l.v1-then.sure.units(l), l.v-then.bank.units(l)
	if n = (max(0, v1) + max(0, v2)) / l.q; v1 < 0 || v2 < 0 { // a charge does not convert the State
		n = max(0, min(n, floorDiv(p.most-then.sure.used-then.bank.used, p.bank.unit)))
	}
	return n, v1, v2
}

func (p *keptPair) giveBack(l *Limit, a *Charge) {
	back := p.bank.given(l, p.sure.p+p.bank.p, a)
	bank := min(back, p.bank.used)
	p.bank.used, p.sure.used = p.bank.used-bank, max(0, p.sure.used-(back-bank))
}

// pay consumes cost, which must be available. The guaranteed part, which holds v1 in the numbers of l, pays first.
func (p *keptPair) pay(l *Limit, v1, cost int64) {
	paid := min(mulDivCeil(min(max(0, v1), cost*l.q), p.sure.unit, l.q), cost*p.sure.unit)
	p.sure.used += paid
	p.bank.used += cost*p.bank.unit - paid
}

// until returns the first moment at which cost is available.
func (p *keptPair) until(l *Limit, cost int64) Micros {
	last := max(p.sure.ticksTo(0), p.bank.ticksTo(0))
	return p.bank.moment(smallest(-1, last, func(ticks int64) bool { n, _, _ := p.left(l, ticks); return n >= cost }))
}

// smallest returns the smallest n, low < n <= high, for which holds(n) is true. holds must be true from that n
// on, up to and including high.
func smallest(low, high int64, holds func(int64) bool) int64 {
	for low+1 < high {
		if mid := low + (high-low)/2; holds(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	return high
}

// mulDiv returns a*b/c rounded down, and whether there was a remainder. Requires a, b >= 0 and c > 0. Results of
// 2^53 or more become 2^53, without a remainder.
func mulDiv(a, b, c int64) (n int64, rest bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return maxExact, false
	}
	quo, rem := bits.Div64(hi, lo, uint64(c))
	if quo >= maxExact {
		return maxExact, false
	}
	return int64(quo), rem > 0
}

// mulDivCeil returns a*b/c rounded up. Requires a, b >= 0 and c > 0. Results above 2^53 become 2^53.
func mulDivCeil(a, b, c int64) int64 {
	n, rest := mulDiv(a, b, c)
	if rest {
		n++
	}
	return n
}
