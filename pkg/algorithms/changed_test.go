package algorithms

import (
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// changing is the reference model of a bucket whose limit changes. It stores the consumption as fractions of
// units, and the numbers of the limit that last wrote the bucket. It finds retry_after, and most other times,
// by trying moments, not by a formula. Its clock steps back by at most a minute.
type changing struct {
	s      Spec
	tick   Micros
	used   []*big.Rat // one element; a guaranteed bucket has two, the guaranteed part and the bank
	ts     Micros     // the time for which used holds
	stored bool
}

func (m changing) copy() changing {
	m.used = slices.Clone(m.used) // a copy of the slice is enough, because the model never modifies a fraction in place
	return m
}

// parts returns the capacities of s, and the inflow of each per microsecond.
func parts(s Spec) (capacities, flows []*big.Rat) {
	flow := big.NewRat(s.Rate, int64(s.Period))
	switch {
	case s.Minimum != nil:
		return []*big.Rat{whole(s.Minimum.Units), whole(valueOr(s.Capacity, s.Rate))},
			[]*big.Rat{big.NewRat(s.Minimum.Units, int64(s.Minimum.Period)), flow}
	case s.Kind == LeakyBucket:
		return []*big.Rat{whole(valueOr(s.Capacity, 0) + 1)}, []*big.Rat{flow}
	default:
		return []*big.Rat{whole(valueOr(s.Capacity, s.Rate))}, []*big.Rat{flow}
	}
}

// scale returns the number of parts into which s divides a unit.
func scale(s Spec, tick Micros) *big.Int {
	if s.Kind == FixedWindow {
		return big.NewInt(1)
	}
	q := big.NewInt(1)
	_, flows := parts(s)
	for _, flow := range flows {
		q = lcm(q, times(flow, whole(int64(tick))).Denom())
	}
	return q
}

func sum(all []*big.Rat) *big.Rat {
	n := whole(0)
	for _, x := range all {
		n = plus(n, x)
	}
	return n
}

// oldEdges returns the window edges of m as s knows them. If s does not have the calendar of m, they are
// the calendar's next edge, followed by windows of the calendar's longest length in hours.
func (m *changing) oldEdges(s Spec, hash uint64) edges {
	e := edgesOf(m.s, m.tick, hash)
	if m.s.Calendar == nil || m.s.Calendar.same(s.Calendar) {
		return e
	}
	next, longest := e.step(m.ts, 1), (m.s.Calendar.Longest+hour-1)/hour*hour
	return edges{phase: next % longest, period: longest}
}

// view returns m in the numbers of s at time t, or in its own numbers if it cannot be converted (isKept).
func (m changing) view(s Spec, tick, t Micros, hash uint64) (v changing, isKept bool) {
	v, isKept = m.flown(s, tick, t, hash)
	if !isKept {
		return v, false
	}
	capacities, _ := parts(s)
	for i := range v.used {
		if less(capacities[i], v.used[i]) {
			return v, true
		}
	}
	q := new(big.Rat).SetInt(scale(s, tick))
	for i := range v.used {
		v.used[i] = over(new(big.Rat).SetInt(up(times(v.used[i], q))), q)
	}
	v.s, v.tick, v.ts = s, tick, t/tick*tick
	return v, false
}

// clock returns the time of the bucket at time t, and how far t is behind it.
func (m *changing) clock(t Micros) (at, behind Micros) {
	if m.stored && t < m.ts {
		return m.ts, m.ts - t
	}
	return t, 0
}

// flown returns m at time t. It is in its own numbers if s has others (isKept).
func (m changing) flown(s Spec, tick, t Micros, hash uint64) (v changing, isKept bool) {
	v = m.copy()
	if !v.stored {
		v = changing{s: s, tick: tick, ts: t / tick * tick, stored: true}
		capacities, _ := parts(s)
		for range capacities {
			v.used = append(v.used, whole(0))
		}
		return v, false
	}
	if s.Kind == FixedWindow {
		e := m.oldEdges(s, hash)
		passed := Micros(up(over(m.used[0], whole(m.s.Rate))).Int64()) // after this many windows the consumption is 0
		if t < e.step(m.ts, passed) {
			passed = e.passed(m.ts, t)
		}
		if e.start(t) > e.start(m.ts) {
			passed = max(passed, 1)
		}
		if v.used[0] = most(whole(0), minus(m.used[0], times(whole(int64(passed)), whole(m.s.Rate)))); passed > 0 && (s.TakesDenied || s.PerRequest) {
			v.used[0] = whole(0)
		}
		v.ts = t / m.tick * m.tick
		if m.s.Calendar != nil && !m.s.Calendar.same(s.Calendar) { // a state that is not converted has the windows of oldEdges
			v.s.Calendar, v.s.Start, v.s.Period = nil, new(e.phase), e.period
		}
	} else {
		_, old := parts(m.s)
		coarse := max(tick, m.tick)
		v.ts = t / coarse * coarse
		largest := over(new(big.Rat).SetInt(exact), new(big.Rat).SetInt(scale(m.s, m.tick)))
		began := m.ts / coarse * coarse
		for i := range v.used {
			used := least(plus(m.used[i], times(old[i], whole(int64(m.ts-began)))), largest) // at the start of the tick that contains m.ts
			v.used[i] = most(whole(0), minus(used, times(old[i], whole(int64(v.ts-began)))))
		}
	}
	if alike(s, tick, m.s, m.tick, hash) {
		v.s, v.tick = s, tick
		return v, false
	}
	if sum(v.used).Sign() == 0 { // a full bucket is decided in the new numbers
		v.s, v.tick, v.ts = s, tick, t/tick*tick
		return v, false
	}
	return v, true
}

func alike(a Spec, tickA Micros, b Spec, tickB Micros, hash uint64) bool {
	c1, f1 := parts(a)
	c2, f2 := parts(b)
	for i := range c1 {
		if c1[i].Cmp(c2[i]) != 0 || f1[i].Cmp(f2[i]) != 0 {
			return false
		}
	}
	if a.Kind == FixedWindow {
		e1, e2 := edgesOf(a, tickA, hash), edgesOf(b, tickB, hash)
		if a.Rate != b.Rate || !e1.calendar.same(e2.calendar) || e1.calendar == nil && (e1.phase != e2.phase || e1.period != e2.period) {
			return false
		}
	}
	return tickA == tickB
}

func reserved(s Spec, tick Micros) int64 {
	switch capacity := valueOr(s.Capacity, s.Rate); {
	case s.Minimum != nil || s.Kind == LeakyBucket:
		return 0
	case s.MaxReserved != nil:
		return *s.MaxReserved
	case s.Kind == FixedWindow:
		return mostWindow(s, tick) - capacity
	default:
		return mostTokens(s, tick) - capacity
	}
}

// holds returns the largest consumption that the numbers of s can express.
func holds(s Spec, tick Micros) int64 {
	switch {
	case s.Kind == FixedWindow:
		return mostWindow(s, tick)
	case s.Minimum != nil:
		_, flows := parts(s)
		q := scale(s, tick)
		most := new(big.Int).Sub(exact, down(times(times(sum(flows), whole(int64(tick))), new(big.Rat).SetInt(q))))
		return most.Div(most, q).Int64()
	default:
		return mostTokens(s, tick)
	}
}

// shown returns the consumption of m in the unit of s, rounded up.
func (m *changing) shown(s Spec, tick Micros) (all []*big.Rat) {
	q := new(big.Rat).SetInt(scale(s, tick))
	for _, used := range m.used {
		all = append(all, over(least(new(big.Rat).SetInt(up(times(used, q))), new(big.Rat).SetInt(exact)), q))
	}
	return all
}

// remaining returns the units that bucket m has left under s. m and isKept are results of view for s. If isKept is
// true, the two parts of a guaranteed bucket are counted separately.
func (m *changing) remaining(s Spec, tick Micros, isKept bool) *big.Rat {
	capacities, _ := parts(s)
	used := m.shown(s, tick)
	left := minus(sum(capacities), sum(used))
	if s.Minimum == nil || !isKept {
		return left
	}
	fits := true
	left = whole(0)
	for i := range capacities {
		fits = fits && !less(capacities[i], used[i])
		left = plus(left, most(whole(0), minus(capacities[i], used[i])))
	}
	if fits {
		return left
	}
	left = least(left, minus(whole(holds(m.s, m.tick)), sum(m.used)))
	old, _ := parts(m.s)
	return least(left, minus(most(sum(capacities), sum(old)), sum(m.used)))
}

func (m changing) passes(s Spec, tick, t Micros, a Charge) bool {
	t, behind := m.clock(t)
	v, isKept := m.view(s, tick, t, a.Hash)
	left, cost := v.remaining(s, tick, isKept), m.cost(s, tick, a)
	capacities, flows := parts(s)
	turn := (&watch{tick: tick}).after(t, up(over(minus(sum(capacities), left), times(flows[0], whole(int64(tick))))))
	if turn > 0 {
		turn += behind
	}
	switch {
	case s.Kind == LeakyBucket && a.MaxWait > 0 && turn > a.MaxWait:
		return false
	case cost.Sign() == 0 && isKept && (s.Minimum != nil || s.Kind == LeakyBucket):
		return true
	case cost.Sign() == 0 && isKept && !less(capacityOrSum(m.s), sum(v.used)):
		return true // lowering the limit makes no debt
	}
	r := whole(0)
	if a.Reserve {
		r = whole(reserved(s, tick))
	}
	if less(left, minus(cost, r)) {
		return false
	}
	return !isKept || cost.Sign() == 0 || !less(whole(max(holds(m.s, m.tick), 0)), plus(sum(v.used), cost)) || s.Kind == LeakyBucket
}

func capacityOrSum(s Spec) *big.Rat {
	capacities, _ := parts(s)
	return sum(capacities)
}

func (m *changing) cost(s Spec, tick Micros, a Charge) *big.Rat {
	cost := whole(a.Cost)
	if a.Scaled {
		cost = over(cost, new(big.Rat).SetInt(scale(s, tick)))
	}
	return cost
}

// first returns the time from now until reached becomes true, or -1 if that is later than it searches. reached(now)
// must be false. If reached is true at the end of a tick, it must also be true at the ends of all later ticks. Within
// the first such tick it must change only once.
func first(now, tick Micros, reached func(t Micros) bool) Micros {
	search := func(lo, hi Micros, reached func(n Micros) bool) Micros { // reached is false at lo and true at hi
		for lo+1 < hi {
			if mid := lo + (hi-lo)/2; reached(mid) {
				hi = mid
			} else {
				lo = mid
			}
		}
		return hi
	}
	base, most := now/tick, Micros(1)
	end := func(n Micros) bool { return reached((base+n+1)*tick - 1) }
	for ; !end(most); most *= 2 {
		if most > 1<<61/tick {
			return -1
		}
	}
	start := now
	if !end(0) {
		start = (base+search(0, most, end))*tick - 1
	}
	return search(start, start/tick*tick+2*tick-1, reached) - now
}

func (m *changing) decide(s Spec, real Micros, a Charge) (d Decision) {
	tick := tickOf(s)
	pass := m.passes(s, tick, real, a)
	now, behind := m.clock(real)
	v, isKept := m.flown(s, tick, now, a.Hash)
	capacities, flows := parts(s)
	inexact := isKept && (s.Overdraw || s.TakesDenied) && less(whole(holds(m.s, m.tick)), sum(capacities))
	if a.Cost < 0 || a.Cost > 0 && (pass || inexact) { // only an allowed charge converts, or a charge that the old numbers cannot express
		v, isKept = m.view(s, tick, now, a.Hash)
	}
	capacity, cost, r := sum(capacities), m.cost(s, tick, a), whole(0)
	if a.Reserve {
		r = whole(reserved(s, tick))
	}
	deepest, coarse := whole(reserved(s, tick)), tick
	if isKept {
		coarse = max(tick, m.tick)
	}
	next, charges, late := v.copy(), true, false
	view := func(m changing, t Micros) changing { v, _ := m.view(s, tick, t, a.Hash); return v }
	take := func(cost *big.Rat) { // the bank pays the units that the guaranteed part lacks
		if s.Minimum != nil {
			sure := least(cost, most(whole(0), minus(capacities[0], v.shown(s, tick)[0])))
			q := new(big.Rat).SetInt(scale(v.s, v.tick))
			sure = least(cost, over(new(big.Rat).SetInt(up(times(sure, q))), q))
			next.used[0], cost = plus(next.used[0], sure), minus(cost, sure)
		}
		last := len(next.used) - 1
		q := new(big.Rat).SetInt(scale(v.s, v.tick))
		next.used[last] = plus(next.used[last], over(new(big.Rat).SetInt(up(times(cost, q))), q))
	}
	turn := (&watch{tick: tick}).after(now, up(over(minus(capacity, v.remaining(s, tick, isKept)), times(flows[0], whole(int64(tick))))))
	switch {
	case a.Cost < 0:
		d.Allowed = true
		bound := whole(holds(v.s, v.tick))
		if !isKept && (s.Minimum != nil || s.Kind == LeakyBucket) {
			bound = capacity // these buckets have no debt
		}
		back := least(minus(whole(0), cost), bound)
		q := new(big.Rat).SetInt(scale(v.s, v.tick))
		back = over(least(new(big.Rat).SetInt(down(times(back, q))), new(big.Rat).SetInt(exact)), q)
		if s.Kind == FixedWindow {
			e := edgesOf(s, tick, a.Hash)
			if isKept {
				e = m.oldEdges(s, a.Hash)
			}
			if a.ChargedAt > 0 && e.start(a.ChargedAt) != e.start(now) {
				back = whole(0)
			}
		} else if a.ChargedAt > 0 {
			pace := flows
			if isKept {
				_, pace = parts(m.s)
			}
			back = undo(back, times(sum(pace), whole(int64(now/coarse*coarse-a.ChargedAt/coarse*coarse))))
		}
		for i := range slices.Backward(next.used) { // refunds fill the bank first
			off := least(back, next.used[i])
			next.used[i], back = minus(next.used[i], off), minus(back, off)
		}
	case pass:
		d.Allowed = true
		take(cost)
		if s.Kind == LeakyBucket {
			d.Wait = turn
		} else if paid := func(t Micros) bool { v := view(next, t); return sum(v.shown(s, tick)).Cmp(capacity) <= 0 }; (a.Cost > 0 || a.Reserve && !isKept) && s.Minimum == nil && !paid(now) {
			d.Wait = first(now, coarse, paid)
		}
	case (s.Overdraw || s.TakesDenied) && a.Cost > 0:
		bottom := plus(capacity, deepest)
		if isKept {
			bottom = least(bottom, whole(max(holds(m.s, m.tick), valueOr(s.Capacity, s.Rate))))
		}
		bottom = most(bottom, sum(v.used))
		take(cost)
		next.used[0] = least(next.used[0], bottom)
		d.Never = s.TakesDenied && less(capacity, cost)
		late = true
	case less(plus(capacity, r), cost):
		d.Never, charges = true, false
	default:
		charges = false
	}
	if !d.Allowed && !charges {
		next = v.copy()
	}
	after, afterKept := next, isKept
	if !d.Allowed && !d.Never {
		stored := next
		if !charges && m.stored {
			stored = *m
		}
		yes := func(t Micros) bool { return stored.passes(s, tick, t, a) }
		if isKept && s.Kind == LeakyBucket { // the wait for a turn must be short enough from the start of a tick on
			yes = func(t Micros) bool { return stored.passes(s, tick, max(min(t, now), t/tick*tick), a) }
		}
		if late { // a cost above the capacity is never available at once; the rest of it becomes a debt
			yes = func(t Micros) bool {
				v, isKept := stored.view(s, tick, max(t, now), a.Hash)
				return !less(v.remaining(s, tick, isKept), minus(least(cost, plus(capacity, r)), r))
			}
		}
		e := edgesOf(s, tick, a.Hash)
		if isKept {
			e = m.oldEdges(s, a.Hash)
		}
		switch next := e.step(now, 1) - now; {
		case late && s.Kind == FixedWindow && yes(now+next):
			d.RetryAfter = next + behind
		case late && yes(now):
			d.RetryAfter = behind
		default:
			d.RetryAfter = first(real, coarse, yes)
		}
	}
	used := after.shown(s, tick)
	d.Value = down(times(minus(capacity, sum(used)), new(big.Rat).SetInt(scale(s, tick)))).Int64()
	d.Remaining = notNegative(down(after.remaining(s, tick, afterKept)))
	full := func(t Micros) bool {
		v, isKept := after.view(s, tick, t, a.Hash)
		return v.remaining(s, tick, isKept).Cmp(capacity) >= 0
	}
	switch {
	case s.Kind == FixedWindow:
		e := edgesOf(s, tick, a.Hash)
		if isKept {
			e = m.oldEdges(s, a.Hash)
		}
		if d.ResetAfter = e.step(now, 1) - now; !full(now + d.ResetAfter) {
			d.ResetAfter = first(now, coarse, full)
		}
	case !full(now):
		d.ResetAfter = first(now, coarse, full)
	}
	for _, t := range []*Micros{&d.ResetAfter, &d.Wait} {
		if *t > 0 {
			*t += behind
		}
	}
	switch {
	case a.DryRun, d.Never && !s.TakesDenied, !m.stored && (a.Cost <= 0 || !charges):
	case a.Cost == 0 || !charges:
	default:
		*m = next
	}
	return d
}

// changeable returns a random limit that the model supports.
func (roll dice) changeable(kind Kind) (Spec, *Limit) {
	for {
		s, l := roll.limit(kind)
		s.Penalty, s.Initial = nil, nil
		if s.Calendar != nil || roll.once(2) { // numbers of similar size, so that one limit can often hold what another one admitted
			s.Rate, s.Period = roll.between(1, 100), Micros(roll.of(1000, 3000, 1e6, 1e6, 7e6, 60e6))
			s.Capacity, s.MaxReserved = new(roll.between(0, 100)), nil
			if s.Calendar != nil {
				s.Period = s.Calendar.Usual
			}
			if kind == TokenBucket || kind == FixedWindow {
				s.MaxReserved = new(roll.between(0, 50))
			}
			if s.Minimum != nil {
				s.Minimum = &Rate{roll.between(1, 20), Micros(roll.of(1000, 1e6, 3e6))}
			}
		}
		if c, err := Compile(s); err == nil && (l.tick == 1 || c.tick == l.tick || roll.once(2)) {
			return s, &c
		}
	}
}

// The limits charge in turn, like processes that read their configurations and their clocks at different times.
func TestChangedNumbersAgreeWithTheModel(t *testing.T) {
	for _, k := range kinds {
		if k.kind == SlidingWindow || k.kind == SlidingLog {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			charges, stayed, denied := 0, 0, 0
			rapid.Check(t, func(t *rapid.T) {
				roll := newDice(t)
				specs, limits := make([]Spec, 3), make([]*Limit, 3)
				for i := range specs {
					specs[i], limits[i] = roll.changeable(k.kind)
					specs[i].TakesDenied, specs[i].PerRequest = specs[0].TakesDenied, specs[0].PerRequest
					specs[i].Overdraw = specs[i].Overdraw && !specs[i].TakesDenied && !specs[i].PerRequest
					limits[i] = mustCompileRapid(t, specs[i])
				}
				var s State
				var model changing
				hash, now := uint64(roll(1<<40)), t0+Micros(roll(1e9))
				i := 0
				for range length(t, 25) {
					if roll.once(3) {
						i = int(roll(3))
					}
					l := limits[i]
					a := roll.charge(l, now, hash)
					if k.kind != LeakyBucket {
						a.MaxWait = 0 // TestRetryAfterIsExact and TestAClientThatPollsIsAllowedAtItsRetryTime cover it
					}
					before := s
					wasModel := model.copy()
					next, got := l.Take(s, now, a)
					want := model.decide(specs[i], now, a)
					s = next
					charges++
					if s.By != nil && s.By != l {
						stayed++
					}
					if !got.Allowed {
						denied++
					}
					if want.Never && !got.Never {
						want = got // nothing else is compared if only the model answers Never
					}
					for _, t := range [][2]*Micros{{&got.RetryAfter, &want.RetryAfter}, {&got.ResetAfter, &want.ResetAfter}, {&got.Wait, &want.Wait}} {
						if *t[1] < 0 { // the time is later than the model searches
							*t[1] = *t[0]
						}
					}
					if got.Never {
						got.Value, got.Remaining, got.ResetAfter, want.Value, want.Remaining, want.ResetAfter = 0, 0, 0, 0, 0, 0
					}
					if got != want {
						t.Fatalf("at %d %+v by %s (%+v)\nof %+v, written by %s\nmodel %+v\n got %+v\nwant %+v", now, a, show(specs[i]), *l, before, show(wasModel.s), wasModel, got, want)
					}
					if got.Allowed || roll.once(2) {
						now += Micros(roll.of(0, 0, 1, roll(1000), roll(1e6), l.period/max(1, l.Rate)*int64(l.tick)))
					} else {
						now += max(0, got.RetryAfter-Micros(roll(2)))
					}
					if roll.once(8) { // the clock steps back, by at most a minute
						now = max(now-Micros(roll.of(1, roll(1000), roll(2e6), roll(60e6), 60e6)), s.At-minute)
					}
					if now > MaxTime/2 {
						return
					}
				}
			})
			t.Logf("%d charges, %d %% of them to a state in other numbers, %d %% denied", charges, 100*stayed/charges, 100*denied/charges)
		})
	}
}

func mustCompileRapid(t *rapid.T, s Spec) *Limit {
	l, err := Compile(s)
	if err != nil {
		t.Fatalf("compile %+v: %v", s, err)
	}
	return &l
}

// A sliding window that counted billions in a second gets a period of a month. Then the product of count
// and period exceeds 64 bits.
func TestHugeCountsOfOtherNumbersDeny(t *testing.T) {
	long := mustCompile(t, Spec{Kind: SlidingWindow, Rate: 10, Period: 30 * Day})
	for count := int64(100_000_000); count <= 3_000_000_000; count += 100_000_000 {
		short := mustCompile(t, Spec{Kind: SlidingWindow, Rate: 3_000_000_000, Period: sec})
		s, d := short.Take(State{}, t0, Charge{Cost: count})
		if !d.Allowed {
			t.Fatalf("a charge of %d was denied", count)
		}
		if _, d = long.Take(s, t0, Charge{Cost: 1}); d.Allowed || d.Remaining != 0 {
			t.Errorf("after %d in a second, 1 of 10 a month is allowed: %+v; want denied and 0 remaining", count, d)
		}
	}
}

func TestAnotherAlgorithmStartsWithANewBucket(t *testing.T) {
	s, _ := mustCompile(t, Spec{Kind: TokenBucket, Rate: 5, Period: minute}).Take(State{}, t0, Charge{Cost: 5})
	for _, k := range []Kind{FixedWindow, SlidingWindow, SlidingLog} {
		if _, d := mustCompile(t, Spec{Kind: k, Rate: 5, Period: minute}).Take(s, t0, Charge{Cost: 5}); !d.Allowed || d.Remaining != 0 {
			t.Errorf("%s: got %+v; want allowed and 0 remaining", k, d)
		}
	}
}
