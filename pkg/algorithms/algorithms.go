// Package algorithms decides. Given what is remembered of a bucket, the time, and a cost, it
// says what to remember next and whether to allow. It reads no clock, rolls no dice, and does no
// I/O; every Store, and the Lua script of the Redis store, computes exactly this.
//
// All of it is integer arithmetic, so that two implementations agree to the last digit. Values
// are scaled (a token bucket counts in 1/q token) so that nothing is ever rounded while tokens
// flow in, and Compile refuses numbers that would leave 2^53, the exact range of a double, in
// which Redis scripts compute.
package algorithms

import "slices"

// Micros is a moment (since 1970, UTC) or a span of time in microseconds.
//
// Microseconds, not nanoseconds: Redis scripts compute in doubles, exact only up to 2^53,
// which nanoseconds passed in April 1970 and microseconds reach in 2255.
type Micros int64

const (
	// Second is one second in Micros.
	Second Micros = 1_000_000
	// Day is 24 hours in Micros.
	Day = 24 * 60 * 60 * Second
	// MaxTime is the latest moment a decision is exact for: 2^52 us, September 2112. The rest of
	// the exact range, another 142 years, is room for windows that lie ahead.
	MaxTime Micros = 1 << 52

	// maxExact is the largest integer up to which all doubles are exact.
	maxExact = 1 << 53
	// maxStepBack is how far a clock may step back before its old time counts as corrupt.
	maxStepBack = 60 * Second
	// MaxLogRate is the largest rate of a sliding log, which remembers every admitted unit.
	MaxLogRate = 10_000
)

// Kind is an algorithm. It is part of a bucket's key: changing it starts a fresh bucket.
type Kind uint8

// The algorithms. Guaranteed is a token bucket with a guaranteed minimum beside it.
const (
	TokenBucket Kind = iota + 1
	FixedWindow
	SlidingWindow
	SlidingLog
	LeakyBucket
	Guaranteed

	// otherNumbers is, within TakeAt, a State that is kept in other numbers than its limit's.
	otherNumbers Kind = 255
)

// String returns the name used in configurations; Guaranteed has the name of the token bucket it
// extends.
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
	default:
		return "unknown"
	}
}

// State is what is remembered of one bucket. The zero State is a bucket never seen.
type State struct {
	// By is the limit whose numbers Value and Prev are written in; nil for a bucket never seen.
	By *Limit
	// Value is what is left: in 1/q token (token and leaky bucket; of a guaranteed bucket, the
	// bank) or in tokens (fixed window). Sliding window: the count of the window At lies in.
	Value int64
	// Prev is, for a sliding window, the count of the window before; for a guaranteed bucket, what
	// is left of the guaranteed part.
	Prev int64
	// At is the time of the last charge (sliding log: of the newest unit in it).
	At Micros
	// Log is, for a sliding log, the times of the units charged, oldest first. It is never edited
	// in place, only cut and appended to, so a State must have one successor only.
	Log []Micros
	// Denials is what the limit's Penalty remembers; nil: nothing.
	Denials *Denials
}

// Ask is what one request wants of one bucket.
type Ask struct {
	// Cost in units; 0 looks, a negative cost gives back.
	Cost int64
	// Hash of the bucket's key, from which a fixed window without a start takes its phase.
	Hash uint64
	// MaxWait denies a leaky bucket's turn that is further away than this; 0: no bound.
	MaxWait Micros
	// Of is, where a give-back undoes a charge, the moment of that charge. Once the window of the charge
	// is over, the give-back returns nothing. A token bucket returns what is given back less what has
	// flowed in since Of: had the units been there all the time, the bucket might have overflowed. So an
	// undo never leaves more than if the charge had not been made. 0: not an undo.
	Of Micros
	// Raw says that Cost is in the unit of State.Value: 1/q token. So the parts of one cost are
	// charged to several shards.
	Raw bool
	// Reserve allows the value to go below zero, down to -MaxReserved.
	Reserve bool
	// Look answers as Take would and takes nothing; all it may store is the first State of a
	// bucket that does not start full, whose clock would never run otherwise.
	Look bool
	// Settle says that the ask corrects an earlier charge: a Cost of 0, no difference, is always allowed.
	Settle bool

	counted bool // takeCounted asks: whatever was denied before
}

// Decision is the answer to one Ask.
type Decision struct {
	// Allowed says whether the cost was (with Look: would be) taken.
	Allowed bool
	// Never marks a denial for good: the cost is more than the bucket can ever hold. RetryAfter is
	// 0 then.
	Never bool
	// Remaining is how many units are left.
	Remaining int64
	// Value is what is left in the unit of State.Value (of a guaranteed bucket, both parts; of the
	// sliding algorithms, Remaining).
	Value int64
	// RetryAfter is, on a denial, the exact time until the same Ask, alone, would be allowed.
	RetryAfter Micros
	// ResetAfter is the time until the bucket is full again.
	ResetAfter Micros
	// Blocked is, on a denial, how long a Penalty blocks the bucket from now; 0: it does not.
	Blocked Micros
	// Wait is how long the caller must wait for what was reserved, or for its turn in a leaky
	// bucket.
	Wait Micros
}

// Take charges a.Cost at time now to the bucket remembered as s. It returns what to remember next
// and the answer. On a denial the State is s, but for a clock that had to be started or mended and
// for limits that charge what they deny (Overdraw, TakesDenied) or count denials (Penalty).
func (l *Limit) Take(s State, now Micros, a Ask) (State, Decision) {
	var d Decision
	l.TakeAt(&s, now, &a, &d)
	return s, d
}

// TakeAt is Take where things lie: s becomes what to remember next, and d the answer. Copying them
// costs as much as deciding.
func (l *Limit) TakeAt(s *State, now Micros, a *Ask, d *Decision) {
	if (l.Penalty.After > 0 || s.Denials != nil) && !a.counted {
		counted := *a
		counted.counted = true
		*s, *d = l.takeCounted(*s, now, counted)
		return
	}
	*d = Decision{}
	if l.Rate == 0 { // nothing flows in: never allows, and there is nothing to divide by
		d.Allowed, d.Never = a.Cost <= 0, a.Cost > 0
		return
	}
	was := *s
	at, seen := l.start(s, now, a.Hash)
	kind := l.Kind
	if s.By != l && kind != SlidingWindow && kind != SlidingLog {
		kind = otherNumbers
	}
	switch kind {
	case TokenBucket:
		l.takeTokens(s, at, a, d)
	case LeakyBucket:
		l.takeTurn(s, at, a, d, at-now)
	case Guaranteed:
		l.takeGuaranteed(s, at, a, d)
	case FixedWindow:
		l.takeWindow(s, at, a, d)
	case SlidingWindow:
		l.takeSliding(s, at, a, d)
	case SlidingLog:
		l.takeLog(s, at, a, d)
	case otherNumbers:
		l.takeKept(s, at, a, d, at-now)
	default:
		*s, d.Never = was, true // not a compiled Limit
		return
	}
	if a.Settle && a.Cost == 0 {
		d.Allowed, d.RetryAfter = true, 0
	}
	if back := at - now; back > 0 { // the clock stands still until it has caught up
		d.later(back)
	}
	switch {
	case d.Never && !l.TakesDenied:
		*s = was
	case a.Cost < 0 && !seen && l.startsFilled(): // full already: nothing to give back
		*s = was
	case a.Cost != 0 && !a.Look && (d.Allowed || l.ChargesDenied()): // s is what remains
	default:
		if *s = was; !l.stays(seen, a.Look) {
			l.start(s, now, a.Hash)
		}
	}
}

// Keep is what remains of s when an Ask is denied for a reason outside this bucket: s itself, but
// for a clock that had to be started or mended.
func (l *Limit) Keep(s State, now Micros, a Ask) State {
	if l.Rate == 0 {
		return s
	}
	was := s.Denials
	if was != nil {
		s.Denials = l.denialsAt(&s, now)
	}
	kept, _, seen := l.begin(s, now, a.Hash)
	kept = l.keep(s, kept, seen, a.Look)
	if kept.Denials = s.Denials; a.Look {
		kept.Denials = was
	}
	return kept
}

// keep is what remains of s where nothing is charged, kept being s with its clock started or
// mended.
func (l *Limit) keep(s, kept State, seen, look bool) State {
	if l.stays(seen, look) {
		return s
	}
	return kept
}

// stays tells whether what is remembered remains as it was where nothing is charged. A bucket that
// starts full is created by its first charge, not before.
func (l *Limit) stays(seen, look bool) bool { return seen && look || !seen && l.startsFilled() }

// start makes s a State of l at time now: a bucket never seen is filled, numbers written under
// another Limit are converted (if that loses nothing; otherwise s.By stays that Limit), and a clock that stepped back is mended: by up to a minute the
// returned time is that of the last charge (nothing flows in meanwhile), by more the value is kept
// and counts from now. So a step neither refills nor starves for more than a minute. It also
// tells whether s was seen before.
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
			s.At = s.By.tickOf(now)
			if n := len(s.Log); n > 0 && s.Log[n-1] > now {
				s.Log = slices.Clone(s.Log)
				for i := range s.Log {
					s.Log[i] = min(s.Log[i], now)
				}
			}
		}
	}
	if s.By != l {
		l.adopt(s, at, hash)
	}
	if !l.startsFilled() && s.By == l && s.Denials == nil && at-s.At > Day-l.Tick && at >= l.fullAt(*s, hash)+Day {
		*s = l.fresh(at) // full for a day, it starts at Initial again: under, never over
		return at, false
	}
	return at, true
}

// begin is start of a copy.
func (l *Limit) begin(s State, now Micros, hash uint64) (kept State, at Micros, seen bool) {
	at, seen = l.start(&s, now, hash)
	return s, at, seen
}

// startsFilled tells whether a bucket never seen equals a full one.
func (l *Limit) startsFilled() bool { return l.Initial >= l.Capacity }

// ChargesDenied tells whether l takes a cost also when it answers "denied".
func (l *Limit) ChargesDenied() bool { return l.Overdraw || l.TakesDenied }

// fresh is the State of a bucket never seen, filled at time now.
func (l *Limit) fresh(now Micros) State {
	s := State{By: l, At: l.tickOf(now)}
	switch l.Kind {
	case TokenBucket, LeakyBucket, Guaranteed:
		s.Value, s.Prev = l.V-(l.Capacity-l.Initial)*l.Q, l.V1
	case FixedWindow:
		s.Value = l.Initial
	case SlidingWindow, SlidingLog: // counts, nothing counted
	}
	return s
}

// FreshAt is a moment from which on s equals the fresh State, so that it may be forgotten without
// changing any decision (for a fixed window with a phase of its own: up to a period after the
// first such moment). With Initial below Capacity a full bucket is kept one day more.
func (s State) FreshAt() Micros {
	l := s.By
	if l == nil || l.Rate == 0 {
		return s.At
	}
	at := s.At
	switch l.Kind {
	case FixedWindow:
		if at = l.fullAt(s, 0); l.Calendar == nil {
			at = s.At + Micros(l.Period*l.windowsToFull(s.Value))*l.Tick
		}
	case TokenBucket, LeakyBucket, Guaranteed, SlidingWindow, SlidingLog:
		at = l.fullAt(s, 0)
	}
	if !l.startsFilled() {
		at += Day
	}
	if s.Denials != nil {
		at = max(at, l.forgottenAt(s.Denials))
	}
	return at
}

// fullAt is the moment at which s, a State of l, has become equal to a full bucket.
func (l *Limit) fullAt(s State, hash uint64) Micros {
	at := int64(s.At / l.Tick)
	switch l.Kind {
	case TokenBucket, LeakyBucket:
		at += ceilDiv(l.V-s.Value, l.P)
	case Guaranteed:
		at += max(ceilDiv(l.V-s.Value, l.P), ceilDiv(l.V1-s.Prev, l.P1))
	case FixedWindow:
		if s.Value < l.Capacity {
			phase := l.PhaseOf(hash)
			return l.windowStart(l.windowOf(s.At, phase)+l.windowsToFull(s.Value), phase)
		}
	case SlidingWindow:
		e := at % l.Period
		switch {
		case s.Value > 0:
			at += 2*l.Period - e
		case s.Prev > 0:
			at += l.Period - e
		}
	case SlidingLog:
		if n := len(s.Log); n > 0 {
			return s.Log[n-1] + Micros(l.Period)
		}
	}
	return Micros(at) * l.Tick
}

// later moves every answered time by the time a clock that stepped back needs to catch up.
func (d *Decision) later(back Micros) {
	if !d.Allowed && !d.Never {
		d.RetryAfter += back
	}
	if d.ResetAfter > 0 {
		d.ResetAfter += back
	}
	if d.Wait > 0 {
		d.Wait += back
	}
}

// tickOf is the start of the tick that t lies in: within one, nothing happens.
func (l *Limit) tickOf(t Micros) Micros {
	if l.Tick == 1 { // as nearly always; a division costs more than all else here
		return t
	}
	return t - t%l.Tick
}

// ticks is how many whole ticks t has.
func (l *Limit) ticks(t Micros) int64 {
	if l.Tick == 1 {
		return int64(t)
	}
	return int64(t / l.Tick)
}

// span turns ticks counted from the tick that now lies in into the exact time from now.
func (l *Limit) span(now Micros, ticks int64) Micros {
	if ticks <= 0 {
		return 0
	}
	return Micros(l.ticks(now)+ticks)*l.Tick - now
}

// giveBack is how many units a negative cost returns; cut to the most that can be missing before
// anything is multiplied with it.
func (l *Limit) giveBack(cost int64) int64 {
	most := l.Capacity + l.MaxReserved
	if cost < -most {
		return most
	}
	return -cost
}

// ceilDiv is a/b rounded up, for a of any sign and b > 0.
func ceilDiv(a, b int64) int64 {
	if a <= 0 {
		return -(-a / b)
	}
	return (a-1)/b + 1
}

// floorDiv is a/b rounded down, for a of any sign and b > 0.
func floorDiv(a, b int64) int64 {
	if a < 0 {
		return -((-a-1)/b + 1)
	}
	return a / b
}
