// Package algorithms decides whether a request may consume units of a bucket.
//
// A decision is a pure function of a Limit, the bucket's State, the time and the cost. It returns
// the next State and a Decision. The package reads no clock, uses no randomness and does no I/O.
// The Stores of this module, including the Lua script of the Redis store, compute exactly the same decisions.
//
// All amounts and times are integers, so that two implementations agree to the last digit. Values are
// scaled so that refilling never rounds: with a rate of p tokens in q ticks (p/q in lowest terms), a token
// bucket counts in units of 1/q token. A tick is a microsecond, or a millisecond if the numbers would be too
// large in microseconds. For a token bucket, Limit.Unit returns q. Compile refuses numbers whose products would exceed
// 2^53, because Redis scripts compute in doubles.
//
// Compile a Spec once, then call Take for each request:
//
//	limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: algorithms.Second})
//	…
//	var state algorithms.State // a new bucket
//	state, decision := limit.Take(state, now, algorithms.Charge{Cost: 1})
//
// Take does not modify the State it gets. However, the next State of a sliding log, or of a limit with a
// Penalty, shares memory with it. So use each State for one charge only, besides any number of dry runs. To use
// a State for several charges, give each of them its own copy of Log, and of Denials including Denials.Times.
package algorithms

import "slices"

// Micros is a moment (microseconds since 1970, UTC) or a span of time in microseconds. For a time.Time t and a
// time.Duration d, they are Micros(t.UnixMicro()) and Micros(d.Microseconds()); time.UnixMicro(int64(m)) converts
// the moment m back.
//
// The unit is not nanoseconds because Redis scripts compute in doubles, which are exact up to
// 2^53. Nanoseconds passed that value in April 1970; microseconds reach it in 2255.
type Micros int64

const (
	// Second is one second in Micros.
	Second Micros = 1_000_000
	// Day is 24 hours in Micros.
	Day = 24 * 60 * 60 * Second
	// MaxTime is the latest moment for which decisions are exact: 2^52 us, September 2112. The
	// remaining 142 years of the exact range leave room for the ends of later windows.
	MaxTime Micros = 1 << 52

	// maxExact is 2^53. A double represents every integer up to it exactly.
	maxExact = 1 << 53
	// maxStepBack is the longest step back of a clock that a bucket waits out: no units flow in until the clock
	// has caught up. After a longer step, time counts from the new time.
	maxStepBack = 60 * Second
	// MaxLogRate is the largest rate of a sliding log, which stores the time of every admitted unit.
	MaxLogRate = 10_000
)

// Kind is an algorithm. It is part of a bucket's key, so that changing the algorithm of a limit starts
// new buckets.
type Kind uint8

// The algorithms. Guaranteed is a token bucket with a guaranteed minimum rate beside it.
const (
	TokenBucket Kind = iota + 1
	FixedWindow
	SlidingWindow
	SlidingLog
	LeakyBucket
	Guaranteed
	Concurrency

	// otherNumbers selects takeKept in TakeAt: the State is expressed in the numbers of another Limit.
	otherNumbers Kind = 255
)

// Kinds returns all algorithms.
func Kinds() [7]Kind {
	return [...]Kind{TokenBucket, FixedWindow, SlidingWindow, SlidingLog, LeakyBucket, Guaranteed, Concurrency}
}

// String returns the algorithm's name in the configuration. Guaranteed returns the name of the token
// bucket, which it extends.
func (k Kind) String() string {
	switch k {
	case TokenBucket, Guaranteed:
		return "token_bucket"
	case FixedWindow:
		return "fixed_window"
	case SlidingWindow:
		return "sliding_window"
	case SlidingLog:
		return "sliding_log"
	case LeakyBucket:
		return "leaky_bucket"
	case Concurrency:
		return "concurrency"
	default:
		return "unknown"
	}
}

// State is the stored state of one bucket. The zero State is that of a new bucket.
type State struct {
	// By is the limit in whose numbers Value and Prev are expressed. It is nil for a new bucket. A Store that
	// loads a saved State sets By to a Limit with the numbers that it had when the State was saved.
	By *Limit
	// Value is the remaining amount. For a token bucket, a leaky bucket and the bank of a guaranteed bucket
	// its unit is 1/q token; for a fixed window it is one token. For a sliding window, Value is the count
	// of the window that contains At.
	Value int64
	// Prev is the count of the previous window (sliding window), or the remaining guaranteed part
	// (guaranteed bucket).
	Prev int64
	// At is the time for which Value holds: that of the last charge, of the creation of a bucket that has not been
	// charged, or of the conversion to the numbers of By. For a sliding log it is the time of the newest entry of Log.
	At Micros
	// Log has the times of the admitted units of a sliding log, oldest first. Units that no longer count may be missing.
	// The next State shares this array. So derive at most one State from each State (see the package documentation).
	Log []Micros
	// Denials is the state of the limit's Penalty. It is nil if no denials and no block are stored.
	Denials *Denials
	// Peaks has the peaks of a limit that settles. It is nil if the limit does not settle or if the peaks are
	// unknown. A Store saves the result of Peaks.All, and restores it with NewPeaks.
	Peaks *Peaks
	// Open has the open reservations of a limit with OpenFor. It is nil if there are none. A Store saves the result of
	// Open.All, and restores it with NewOpen.
	Open *Open
	// Slots has the slots of a concurrency limit. Value is then the number of their units, and Prev their number. It is
	// nil if there was never a slot.
	Slots *Slots
}

// Charge is a request for units of one bucket.
type Charge struct {
	// Cost is the number of units. A negative cost is a refund. A cost of 0 consumes nothing, and the Decision
	// describes the bucket; it is denied while the bucket is in debt or blocked. Set DryRun to learn whether a
	// cost would be allowed.
	Cost int64
	// Hash identifies the bucket's key; any hash function will do, but each charge of a bucket must use the
	// same one. A fixed window without a Start derives from Hash when the windows of this key start.
	Hash uint64
	// MaxWait is the longest acceptable wait for a turn in a leaky bucket, or for reserved units (Reserve). A request
	// that would have to wait longer is denied, and Never is set if that is so even if the bucket is full. For this, every
	// window counts as long as the longest. 0 means no bound. While a bucket of units to reserve has the numbers of another
	// limit, a request with MaxWait is allowed only when its wait is as short as it can be, which is usually 0.
	MaxWait Micros
	// ChargedAt makes a refund the undo of a charge. It is the time of that charge; 0 means that the refund
	// is not an undo.
	//
	// An undo never leaves more units than there would be without the charge:
	//
	//  - Once the window of the charge has ended, an undo returns nothing. This applies to fixed windows, sliding
	//    windows and sliding logs. Until then, a sliding log removes the units of that charge, not the newest.
	//  - Other buckets get back the refund less the units that have flowed in since ChargedAt. Without the charge
	//    the bucket might have been full, and these units would have been lost.
	//  - A limit with Spec.Settles refunds as described at Settle.
	ChargedAt Micros
	// Scaled is for Stores. It means that Cost is in the unit of State.Value (see Limit.Unit). A Store sets
	// Scaled when it charges parts of one cost to several shards.
	Scaled bool
	// Reserve allows the charge to take the bucket below zero, down to -MaxReserved. It has an effect only on token
	// buckets and fixed windows (Limit.CanReserve).
	Reserve bool
	// Free means that a denial changes nothing: no limit charges this request if it is denied, and no Penalty counts
	// the denial. TakeAll sets it for all charges of a group that contains a refund. A Store that charges such a
	// group in several steps must set it in all of them.
	Free bool
	// DryRun makes Take return the Decision without consuming anything. The returned State need not be stored,
	// except for a new bucket that does not start full: without a stored State its time of creation is
	// unknown, and no units flow in.
	DryRun bool
	// Settle marks the correction of an earlier charge. A correction of 0 is always allowed.
	//
	// A limit with Spec.Settles allows every correction. ChargedAt is the time of the earlier charge.
	//
	//  - A positive Cost is charged until the bucket reaches -MaxDebt. Decision.Lost has the rest.
	//  - A negative Cost is a refund. It fills the bucket only as far as the bucket would be filled if these units
	//    had never been consumed. So it is at most the smallest amount by which the bucket was below full at any
	//    moment since the charge.
	//  - A fixed window refunds only within the window of the charge.
	//
	// Other limits decide a positive Cost like the cost of a request.
	Settle bool
	// Open belongs to limits with OpenFor. The units of the charge become an open reservation of the bucket. With Settle,
	// the charge settles one of the newest open reservations, and Cost is its real cost: see Spec.OpenFor. A negative Cost
	// without Settle undoes a reservation.
	Open bool

	inOpen  bool // set by takeOpen before it calls TakeAt again
	counted bool // set by takeCounted, which applies the penalty before it calls TakeAt again

	// Slot names the slot of a charge of a concurrency limit. Without it, only dry runs are allowed. The other fields of
	// such a charge have no effect, except for Cost, Free and DryRun. The Slot must not change while States refer to it.
	Slot *Slot
}

// Decision is the answer to one Charge.
type Decision struct {
	// Allowed reports whether the cost was consumed, or in a dry run whether it would be.
	Allowed bool
	// Never means that no State of the bucket could ever allow the cost. RetryAfter is then 0. A limit with
	// Overdraw and a Rate above 0 does not set Never (see RetryAfter).
	Never bool
	// Remaining is the number of whole units left. It is 0 for a bucket in debt.
	Remaining int64
	// Value is the remaining amount in the unit of State.Value. For a guaranteed bucket it is the sum of
	// both parts; for the sliding algorithms it equals Remaining.
	Value int64
	// RetryAfter is set for a denial, unless Never is set. It is the exact time until the same Charge would be
	// allowed if no other request came first. A limit with Overdraw also sets it for a cost that is never allowed
	// because the bucket cannot hold it. It is then the time until the bucket is full.
	RetryAfter Micros
	// ResetAfter is the time until the bucket is full again if no more units are consumed. For a fixed window
	// it is at least the time until the next window starts, even if the bucket is full.
	ResetAfter Micros
	// Blocked is the time until the end of a block by a Penalty. It is set only for a denial; 0 means that no
	// Penalty blocks the bucket.
	Blocked Micros
	// Wait is the time until reserved units are available, or until the turn in a leaky bucket.
	Wait Micros
	// Lost is the number of units, rounded up, that a settlement did not charge because the bucket would have gone
	// below -MaxDebt. For an operation on a slot, see SlotOp; for the taking of one, it is the number of units of
	// expired slots that were removed.
	Lost int64
}

// Take charges a.Cost to a bucket with state s at time now. It returns the next state and the decision.
//
// A denial returns s unchanged, with these exceptions:
//
//   - If s is new and Initial is below Capacity, the next state contains the time from which units flow in. The
//     same applies if such a bucket has been full for a day: it is then new again.
//   - If s was written under another Limit and Initial is below Capacity, the next state is in the numbers of l.
//   - If a clock has stepped back, so that now is more than a minute before s.At, time counts from now.
//   - The limit may charge denied requests (Overdraw, TakesDenied) or count denials (Penalty).
func (l *Limit) Take(s State, now Micros, a Charge) (State, Decision) {
	var d Decision
	if l.TakeAt(&s, now, &a, &d); !a.DryRun {
		s.Slots.Apply()
	}
	return s, d
}

// TakeAt is for Stores. It does what Take does, but writes the next state to s and the decision to d.
// Returning copies of them would take as long as the decision itself.
func (l *Limit) TakeAt(s *State, now Micros, a *Charge, d *Decision) {
	if (l.Penalty.After > 0 || s.Denials != nil) && !a.counted {
		*s, *d = l.takeCounted(*s, now, *a)
		return
	}
	if l.OpenFor > 0 && !a.inOpen {
		l.takeOpen(s, now, a, d)
		return
	}
	*d = Decision{}
	if l.Rate == 0 { // the formulas below divide by Rate
		d.Allowed, d.Never = a.Cost <= 0, a.Cost > 0
		return
	}
	if l.Kind == Concurrency {
		l.takeSlots(s, now, a, d)
		return
	}
	was := *s
	at, seen := l.start(s, now, a.Hash)
	kind := l.Kind
	if s.By != l && kind != SlidingWindow && kind != SlidingLog {
		if l.takeConverted(s, &was, now, at, a, d) {
			return
		} else if s.By != l {
			kind = otherNumbers
		}
	}
	switch kind {
	case TokenBucket, FixedWindow, LeakyBucket:
		l.takeLevel(s, at, a, d, at-now)
	case Guaranteed:
		l.takeGuaranteed(s, at, a, d)
	case SlidingWindow:
		l.takeSliding(s, at, a, d)
	case SlidingLog:
		l.takeLog(s, at, a, d)
	case otherNumbers:
		l.takeKept(s, at, a, d, at-now)
	default:
		*s, d.Never = was, true // l was not made by Compile
		return
	}
	if a.Settle && a.Cost == 0 {
		d.Allowed, d.RetryAfter = true, 0
	}
	d.later(at - now) // no units flow in until the clock has caught up
	switch {
	case d.Never && !l.takesDenied(a):
		*s = was
	case a.Cost < 0 && !seen && l.startsFilled(): // a full bucket needs no refund
		*s = was
	case a.Cost != 0 && !a.DryRun && (d.Allowed || l.chargesDenied(a)): // s is the charged state
		s.Open = nil // takeOpen sets it
	default:
		if *s = was; !l.stays(seen, a.DryRun || a.Free && !d.Allowed) {
			l.start(s, now, a.Hash)
		}
	}
}

// afterDenial returns the state to store for a bucket that is not charged because another bucket of its group
// denied, or because a Penalty blocks it: s as start prepares it, without outdated Denials.
func (l *Limit) afterDenial(s State, now Micros, a Charge) State {
	if l.Rate == 0 || l.Kind == Concurrency {
		return s
	}
	was := s.Denials
	if was != nil {
		s.Denials = l.denialsAt(&s, now)
	}
	kept, _, seen := l.begin(s, now, a.Hash)
	kept = l.keep(s, kept, seen, a.DryRun || a.Free)
	if kept.Denials = s.Denials; a.DryRun || a.Free {
		kept.Denials = was
	}
	return kept
}

// keep returns the state to store after a decision that charges nothing. kept is s as start prepared it. seen
// and dryRun are those of stays.
func (l *Limit) keep(s, kept State, seen, dryRun bool) State {
	if l.stays(seen, dryRun) {
		return s
	}
	return kept
}

// stays reports whether a decision that charges nothing leaves the stored state untouched. dryRun includes denials
// of charges that are Free. seen means that the bucket is stored. A bucket that starts full is not stored before its first charge.
func (l *Limit) stays(seen, dryRun bool) bool { return seen && dryRun || !seen && l.startsFilled() }

// start prepares s for a decision of l. It returns the time of the decision, and whether s was stored before.
//
//   - A new bucket gets its initial units.
//   - A bucket whose Initial is below its Capacity is new again after it was full for a day.
//   - If s has numbers of another Limit, s.By stays that Limit, and an allowed charge converts them. However, a bucket
//     whose Initial is below its Capacity is converted at once, and counts as not stored.
//   - If the clock stepped back by up to a minute, the decision has the time of the last charge, so that no units flow
//     in until the clock has caught up. If it stepped back further, the value is kept and time counts from now.
//     So a step of the clock neither refills a bucket nor stops its refill for more than a minute.
func (l *Limit) start(s *State, now Micros, hash uint64) (at Micros, seen bool) {
	if s.By == nil || s.By.Kind != l.Kind || l.Kind == SlidingLog && len(s.Log) == 0 {
		*s = l.fresh(now)
		return now, false
	}
	at = now
	if now < s.At {
		if s.At-now <= maxStepBack {
			at = s.At
		} else {
			if s.By.Calendar != nil && l.Kind == FixedWindow && !l.Calendar.same(s.By.Calendar) {
				s.By = s.By.outlived(s.At)
			}
			if s.Peaks = nil; l.Settles { // the times of peaks before the step are too late
				s.Peaks = s.By.passed(s.At, now)
			}
			s.At = s.By.tickOf(now)
			if n := len(s.Log); n > 0 && s.Log[n-1] > now {
				s.Log = slices.Clone(s.Log)
				for i := range s.Log {
					s.Log[i] = min(s.Log[i], now)
				}
			}
		}
	}
	switch {
	case s.By == l:
	case l.sameScale(s.By, hash):
		s.By = l
	case !l.startsFilled():
		*s, _, _ = l.converted(s, at, hash)
		return at, false
	}
	if !l.startsFilled() && s.By == l && s.Denials == nil && s.Open == nil && at-s.At > Day-l.tick && at >= l.fullAt(*s, hash)+Day {
		*s = l.fresh(at)
		return at, false
	}
	return at, true
}

func (l *Limit) begin(s State, now Micros, hash uint64) (kept State, at Micros, seen bool) {
	at, seen = l.start(&s, now, hash)
	return s, at, seen
}

func (l *Limit) startsFilled() bool { return l.Initial >= l.Capacity }

// ChargesDenied is for Stores. It reports whether l charges denied requests, too.
func (l *Limit) ChargesDenied() bool { return l.Overdraw || l.TakesDenied }

// chargesDenied reports whether l charges a even if it is denied. A denied reservation does no work, so it is not
// charged; a settlement corrects the charge of work that was done.
func (l *Limit) chargesDenied(a *Charge) bool {
	return l.ChargesDenied() && !a.Free && (!a.Reserve || a.Settle)
}

func (l *Limit) takesDenied(a *Charge) bool { return l.TakesDenied && l.chargesDenied(a) }

func (l *Limit) fresh(now Micros) State {
	s := State{By: l, At: l.tickOf(now)}
	if l.Settles {
		s.Peaks = noPeaks
	}
	switch l.Kind {
	case TokenBucket, FixedWindow, LeakyBucket, Guaranteed:
		s.Value, s.Prev = l.v-(l.Capacity-l.Initial)*l.q, l.v1
	case SlidingWindow, SlidingLog:
	}
	return s
}

// FreshAt returns a moment from which s equals a new State. A Store may delete s then without changing any
// decision.
//
// For a fixed window without a Calendar, the moment may be up to a period later than necessary. If Initial is
// below Capacity, a full bucket is kept for one more day.
func (s State) FreshAt() Micros {
	l := s.By
	if l == nil || l.Rate == 0 {
		return s.At
	}
	if l.Kind == Concurrency {
		return s.Slots.lastExpiry(s.At)
	}
	at := l.fullAt(s, 0)
	if l.Kind == FixedWindow && l.Calendar == nil {
		at = s.At + Micros(l.period*ceilDiv(l.v-s.Value, l.p))*l.tick
	}
	if !l.startsFilled() {
		at += Day
	}
	if s.Denials != nil {
		at = max(at, l.forgottenAt(s.Denials))
	}
	if open := s.Open.All(); len(open) > 0 {
		at = max(at, l.openEnd(open[len(open)-1]))
	}
	if p := s.Peaks.All(); len(p) > 0 { // after a clock stepped back, the last peak may be later than s.At
		at = max(at, p[len(p)-1].Until)
	}
	return at
}

// fullAt returns the moment from which s, a State of l, is full if nothing more is charged. Only fixed windows
// use hash, the hash of the key.
func (l *Limit) fullAt(s State, hash uint64) Micros {
	at := int64(s.At / l.tick)
	switch l.Kind {
	case TokenBucket, FixedWindow, LeakyBucket:
		c := l.clockAt(s.At, hash)
		return s.At + c.until(l, ceilDiv(l.v-s.Value, l.p))
	case Guaranteed:
		at += max(ceilDiv(l.v-s.Value, l.p), ceilDiv(l.v1-s.Prev, l.p1))
	case SlidingWindow:
		e := at % l.period
		switch {
		case s.Value > 0:
			at += 2*l.period - e
		case s.Prev > 0:
			at += l.period - e
		}
	case SlidingLog:
		if n := len(s.Log); n > 0 {
			return s.Log[n-1] + Micros(l.period)
		}
	}
	return Micros(at) * l.tick
}

// later adds lag, the time that a clock needs to catch up after it stepped back, to every waiting time in d.
// Times of 0 stay 0, except the RetryAfter of a denial.
func (d *Decision) later(lag Micros) {
	if lag <= 0 {
		return
	}
	if !d.Allowed && !d.Never {
		d.RetryAfter += lag
	}
	if d.ResetAfter > 0 {
		d.ResetAfter += lag
	}
	if d.Wait > 0 {
		d.Wait += lag
	}
}

// GiveBack is for Stores. It returns the number of units that a negative cost refunds. It is at most what a bucket can lack in exact
// numbers, so that products with it cannot overflow. MaxReserved is no bound: settlements go down to -MaxDebt, and an
// earlier limit may have reserved more.
func (l *Limit) GiveBack(cost int64) int64 { return min(-max(cost, -maxExact), l.Capacity+l.reach) }

// ceilDiv returns a/b rounded up, for a of any sign and b > 0.
func ceilDiv(a, b int64) int64 {
	if a <= 0 {
		return -(-a / b)
	}
	return (a-1)/b + 1
}

// floorDiv returns a/b rounded down, for a of any sign and b > 0.
func floorDiv(a, b int64) int64 {
	if a < 0 {
		return -((-a-1)/b + 1)
	}
	return a / b
}
