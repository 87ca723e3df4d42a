package algorithms

import (
	"flag"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A failing property test prints the seed that repeats it. By default, rapid also writes the input to a file. That is
// switched off, because such files could be committed by mistake; -rapid.nofailfile=false switches it on.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		panic(err)
	}
	m.Run()
}

// dice makes the random limits, times and charges of the property tests: 0 <= dice(n) < n.
//
// All numbers of a trace come from one seed. That is some fifty times faster than one rapid draw for each
// number. rapid draws only the seed and the length of the trace, so a failure shrinks to a short trace.
type dice func(n int64) int64

func newDice(t *rapid.T) dice {
	return rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)).Int64N
}

func length(t *rapid.T, most int) int { return rapid.IntRange(1, most).Draw(t, "steps") }

func (roll dice) between(lo, hi int64) int64 { return lo + roll(hi-lo+1) }

func (roll dice) of(values ...int64) int64 { return values[roll(int64(len(values)))] }

func (roll dice) once(in int64) bool { return roll(in) == 0 }

var kinds = []struct {
	name string
	kind Kind
}{
	{"token bucket", TokenBucket},
	{"fixed window", FixedWindow},
	{"sliding window", SlidingWindow},
	{"sliding log", SlidingLog},
	{"leaky bucket", LeakyBucket},
	{"guaranteed", Guaranteed},
}

func (roll dice) spec(kind Kind) Spec {
	period := func() Micros {
		return Micros(roll.of(1, 7, 1000, 3000, 999_983, 1e6, 1e6, 60e6, 3600e6, int64(Day), int64(30*Day), roll.between(1, 1e10)))
	}
	s := Spec{Kind: kind, Period: period(), Rate: roll.of(1, 2, 3, 7, 10, 60, 1000, roll.between(1, 1e6), 1e8)}
	capacity := s.Rate
	if kind != SlidingWindow && kind != SlidingLog && !roll.once(3) {
		capacity = roll.of(0, 1, 2, 5, 10, 100, 10*s.Rate, roll.between(0, 3*s.Rate), 1e5, 1e6)
		s.Capacity = &capacity
	}
	switch kind {
	case TokenBucket, FixedWindow:
		if roll.once(3) {
			s.Initial = new(roll.of(0, capacity/2, capacity, roll.between(0, capacity)))
		}
		if !roll.once(3) {
			s.MaxReserved = new(roll.of(0, 1, 3, capacity, roll.between(0, 2*s.Rate), 1e6))
		}
		s.Overdraw = roll.once(5)
	case Guaranteed:
		s.Kind, s.Minimum = TokenBucket, &Rate{roll.of(1, 3, 10, roll.between(1, 1000)), period()}
		if roll.once(3) {
			s.Initial = new(roll.between(0, capacity))
		}
	case SlidingLog:
		s.Rate = roll.of(1, 2, 3, 10, 50)
	case SlidingWindow, LeakyBucket:
	}
	if kind == FixedWindow {
		if roll.once(2) {
			s.Start = new(Micros(roll.of(0, -1, int64(t0)+1, roll.between(-1e12, 1e15))))
		}
		if !s.Overdraw && roll.once(4) { // as for envoyproxy/ratelimit and the overrides of Envoy
			s.TakesDenied, s.Initial, s.Start = roll.once(2), nil, new(Micros(0))
			s.PerRequest = !s.TakesDenied
		}
		if roll.once(4) {
			s.Calendar, s.Start = calendars[roll(int64(len(calendars)))], nil
			s.Period = s.Calendar.Usual // Compile ignores Period if there is a Calendar, but the tests need a number
		}
	}
	if !s.Overdraw && roll.once(5) {
		first := Micros(roll.of(1, 999, 1e6, int64(s.Period), 3*int64(s.Period), roll.between(1, 1e10)))
		s.Penalty = &Penalty{After: roll.of(1, 2, 3, 5), For: first, Max: min(MaxBlock, first*Micros(roll.of(1, 2, 3, 8, 1000)))}
	}
	return s
}

func (roll dice) limit(kind Kind) (Spec, *Limit) {
	coarse := kind != SlidingLog && roll.once(4)
	for {
		s := roll.spec(kind)
		if l, err := Compile(s); err == nil && (!coarse || l.tick > 1) {
			return s, &l
		}
	}
}

func (roll dice) charge(l *Limit, now Micros, hash uint64) Charge {
	most := l.Capacity
	a := Charge{Hash: hash, DryRun: roll.once(10)}
	if l.CanReserve() && !l.Overdraw && !l.TakesDenied && !l.PerRequest && roll.once(3) {
		a.Reserve = true
		most = l.Most(true)
	}
	if (l.Kind == LeakyBucket || a.Reserve) && roll.once(3) {
		a.MaxWait = Micros(roll.of(1, l.period/l.Rate+1, int64(l.tick)*l.period*roll.between(1, 5), roll.between(1, 1e9)))
	}
	switch roll(12) {
	case 0:
		a.Cost = roll.of(0, 0, most+1, most+roll.between(1, 1000), math.MaxInt64)
	case 1:
		a.Cost = -roll.of(1, 2, roll.between(1, l.Capacity+1), l.Most(true), l.Most(true)+1, math.MaxInt64)
	case 2:
		a.Cost = math.MinInt64 * roll.of(0, 0, 0, 1)
	case 3, 4:
		a.Cost = roll.between(0, most)
	case 5:
		a.Cost = max(0, most-roll(3))
	case 6, 7, 8:
		a.Cost = 1
	default:
		a.Cost = roll.between(1, max(1, min(most, 1+l.Capacity/3)))
	}
	if a.Cost < 0 && roll.once(3) {
		a.ChargedAt = now - Micros(roll.of(0, 1, roll(l.period), l.period, roll(2*l.period)))*l.tick
	}
	if l.Kind == TokenBucket && roll.once(8) {
		a.Scaled = true
		a.Cost = max(-most-2, min(a.Cost, most+2))*l.q - roll(l.q)
	}
	return a
}

// wholeSteps reports whether the retry time of a is exact, also for a bucket in the numbers of another limit. docs/trust.md
// describes the exceptions: a leaky bucket and a MaxWait that is no whole number of its ticks, and windows of a calendar.
func wholeSteps(l *Limit, a Charge) bool {
	return a.MaxWait == 0 || l.Calendar == nil && (l.Kind != LeakyBucket || a.MaxWait%l.length == 0)
}

// next returns the time of the next charge after one that was decided with d at time now. Now and then the
// clock steps back.
func (roll dice) next(l *Limit, now Micros, d Decision) Micros {
	timeOfUnit := (l.period / max(1, l.Rate)) * int64(l.tick)
	period := l.period * int64(l.tick)
	near := []int64{0, 0, 1, roll(1000), timeOfUnit, roll(timeOfUnit + 1), roll(2*timeOfUnit + 1), roll(10*timeOfUnit + 1)}
	step := roll.of(near...)
	switch roll(60) {
	case 0, 1, 2, 3, 4, 5:
		step = max(0, roll.of(int64(d.RetryAfter), int64(d.ResetAfter), int64(d.Wait))-roll(2))
	case 6, 7:
		step = roll(period + 1)
	case 8:
		step = roll.of(period, period-1, 2*period, 3*period+roll(period), int64(Day), int64(Day)+roll(int64(Day)))
	case 9:
		step = -roll.of(1, 999, 1000, 1001, roll(60e6), 60e6, 60e6+1, 3600e6, roll(3600e6), roll(int64(Day)))
	}
	if step > int64(MaxTime/1000) { // stay within the exact range of times
		step = roll.of(near...)
	}
	return now + Micros(step)
}

type moment struct {
	limit         *Limit
	now           Micros
	charge        Charge
	before, after State
	got           Decision
}

// walk passes n random charges of one bucket to visit. It changes between the limits at random.
func (roll dice) walk(n int, limits []*Limit, visit func(moment)) {
	hash := uint64(roll(math.MaxInt64)) * 2
	now := Micros(roll.of(int64(t0), int64(t0)+roll(int64(30*Day))))
	at := moment{limit: limits[0]}
	for range n {
		if len(limits) > 1 && roll.once(15) {
			at.limit = limits[roll(int64(len(limits)))]
		}
		at.now, at.charge, at.before = now, roll.charge(at.limit, now, hash), clone(at.after)
		at.after, at.got = at.limit.Take(at.after, at.now, at.charge)
		visit(at)
		if now = roll.next(at.limit, now, at.got); now > MaxTime {
			return
		}
	}
}

// clone copies a State with its log and its denials, because Take appends to their arrays in place.
func clone(s State) State {
	s.Log = slices.Clone(s.Log)
	if d := s.Denials; d != nil {
		s.Denials = &Denials{slices.Clone(d.Times), d.Blocks, d.Until}
	}
	return s
}

func same(a, b State) bool { return sameButDenials(a, b) && sameDenials(a.Denials, b.Denials) }

func sameDenials(a, b *Denials) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.Equal(a.Times, b.Times) && a.Blocks == b.Blocks && a.Until == b.Until
}

func sameButDenials(a, b State) bool {
	return a.By == b.By && a.Value == b.Value && a.Prev == b.Prev && a.At == b.At && slices.Equal(a.Log, b.Log)
}
