package algorithms

import (
	"math/big"
	"slices"
	"time"
)

// The edges differ from phase by whole periods, or are those of a calendar.
type edges struct {
	phase, period Micros
	calendar      *Calendar
}

func edgesOf(s Spec, tick Micros, hash uint64) edges {
	e := edges{period: s.Period, calendar: s.Calendar}
	switch {
	case s.Calendar != nil:
	case s.Start != nil:
		e.phase = ((*s.Start % s.Period) + s.Period) % s.Period / tick * tick
	default:
		e.phase = Micros(hash%uint64(s.Period/tick)) * tick
	}
	return e
}

// start returns the edge at or before t.
func (e edges) start(t Micros) Micros {
	if e.calendar != nil {
		return e.calendar.Edges.(civil).shows(e.date(t, 0))
	}
	into := (t - e.phase) % e.period
	if into < 0 {
		into += e.period
	}
	return t - into
}

// step returns the n-th edge after the edge at or before t.
func (e edges) step(t, n Micros) Micros {
	if e.calendar != nil {
		return e.calendar.Edges.(civil).shows(e.date(t, int(n)))
	}
	return e.start(t) + n*e.period
}

// passed returns the number of edges e with from < e <= to.
func (e edges) passed(from, to Micros) (n Micros) {
	if e.calendar == nil {
		return (e.start(to) - e.start(from)) / e.period
	}
	for t := e.start(from); t < e.start(to); t = e.step(t, 1) {
		n++
	}
	return n
}

func (e edges) date(t Micros, n int) time.Time { return e.calendar.Edges.(civil).date(t, n) }

// windowReference grants rate at each edge. Unused units are kept up to capacity.
type windowReference struct {
	s Spec
	watch
	value int64
}

func (b *windowReference) decide(now Micros, a Charge) (d Decision) {
	kept := *b
	rate, capacity := b.s.Rate, valueOr(b.s.Capacity, b.s.Rate)
	initial := valueOr(b.s.Initial, capacity)
	reserved := valueOr(b.s.MaxReserved, mostWindow(b.s, b.tick)-capacity)
	e := edgesOf(b.s, b.tick, a.Hash)
	edgesToGrant := func(missing int64) Micros {
		return Micros(up(big.NewRat(max(0, missing), rate)).Int64())
	}
	at, behind := kept.read(now)
	restarted := false
	if kept.seen && !kept.denialsStored && initial < capacity {
		full := kept.ts
		if kept.value < capacity {
			full = e.step(kept.ts, edgesToGrant(capacity-kept.value))
		}
		if at >= full+Day && at >= kept.ts+Day {
			kept.seen = false
		}
	}
	if !kept.seen {
		kept.value, kept.ts = initial, b.startOfTick(at)
		kept.seen = initial < capacity
		restarted = kept.seen
	}
	value := kept.value
	if passed := e.passed(kept.ts, at); passed >= edgesToGrant(capacity-value) {
		value = capacity
	} else if passed > 0 {
		value += int64(passed) * rate
	}
	edge := func(n Micros) Micros { return e.step(at, n) - at }
	r := int64(0)
	if a.Reserve {
		r = reserved
	}
	cost, takes := min(a.Cost, 1<<55), true // 1<<55 is more than any bucket can hold
	longest, atMost := b.s.Period, edge
	if b.s.Calendar != nil { // from the third edge on, windows count as the longest possible
		longest = b.s.Calendar.Longest
		atMost = func(n Micros) Micros { return edge(min(n, 2)) + max(0, n-2)*longest }
	}
	turn := -a.MaxWait // how much longer than MaxWait the wait is
	if n := edgesToGrant(cost - value); a.Reserve && a.MaxWait > 0 && a.Cost >= 0 && n > 0 {
		turn += atMost(n)
	}
	switch {
	case turn+a.MaxWait > 0 && edgesToGrant(cost-capacity) > a.MaxWait/longest:
		d.Never, takes = true, false
	case turn+a.MaxWait > 0 && turn+behind > 0:
		if d.RetryAfter, takes = turn, false; value-cost < -r {
			if n := edgesToGrant(cost - r - value); atMost(n) >= turn {
				d.RetryAfter = edge(n)
			}
		}
		if d.Never = cost > capacity+r; d.Never {
			d.RetryAfter = 0
		}
	case cost < 0 && a.ChargedAt > 0 && e.start(a.ChargedAt) != e.start(at): // the window of the charge to undo has ended
		d.Allowed = true
	case cost < 0:
		d.Allowed = true
		value = min(capacity, value-max(cost, -1<<55))
	case value-cost >= -r:
		d.Allowed = true
		if value -= cost; value < 0 {
			d.Wait = edge(edgesToGrant(-value))
		}
	case b.s.Overdraw:
		value = max(min(value, -reserved), value-cost)
		d.RetryAfter = edge(max(1, edgesToGrant(min(cost, capacity)-value)))
	case cost > capacity+r:
		d.Never, takes = true, false
	default:
		d.RetryAfter, takes = edge(edgesToGrant(cost-r-value)), false
	}
	d.Value, d.Remaining = value, max(0, value)
	d.ResetAfter = edge(max(1, edgesToGrant(capacity-value)))
	switch {
	case d.Never || a.Cost < 0 && !kept.seen:
	case takes && a.Cost != 0 && !a.DryRun:
		b.value, b.ts, b.seen = value, b.startOfTick(at), true
	case !a.DryRun, restarted:
		*b = kept
	}
	return delay(d, behind)
}

// counterReference is the counter of envoyproxy/ratelimit: one per window, from 0 up to the limit. With
// TakesDenied it counts denials too.
type counterReference struct {
	s Spec
	watch
	count int64
}

func (b *counterReference) decide(now Micros, a Charge) (d Decision) {
	kept := *b
	capacity := valueOr(b.s.Capacity, b.s.Rate)
	reserved := valueOr(b.s.MaxReserved, mostWindow(b.s, b.tick)-capacity)
	e := edgesOf(b.s, b.tick, a.Hash)
	at, behind := kept.read(now)
	count := kept.count
	if !kept.seen || e.start(at) > e.start(kept.ts) {
		count = 0
	}
	cost, takes := max(min(a.Cost, 1<<55), -1<<55), true
	switch {
	case cost < 0 && a.ChargedAt > 0 && e.start(a.ChargedAt) != e.start(at):
		d.Allowed = true
	case cost < 0:
		d.Allowed = true
		count = max(0, count+cost)
	case count+cost <= capacity:
		d.Allowed = true
		count += cost
	default:
		if takes = b.s.TakesDenied && !a.Free; takes {
			count = max(count, min(count+cost, capacity+reserved))
		}
		if d.Never = cost > capacity; !d.Never {
			d.RetryAfter = e.step(at, 1) - at
		}
	}
	d.Value, d.Remaining = capacity-count, max(0, capacity-count)
	d.ResetAfter = e.step(at, 1) - at
	switch {
	case a.DryRun || a.Cost < 0 && !b.seen || d.Never && !takes:
	case takes && a.Cost != 0:
		b.count, b.ts, b.seen = count, b.startOfTick(at), true
	default:
		*b = kept
	}
	return delay(d, behind)
}

// logReference stores the time of every admitted unit and counts the units younger than a period. Its clock
// is the newest of these times.
type logReference struct {
	s Spec
	watch
	admitted []Micros
}

func (b *logReference) decide(now Micros, a Charge) (d Decision) {
	kept := *b
	at, behind := kept.read(now)
	kept.admitted = nil
	for _, t := range b.admitted { // after a step back of the clock, no unit is newer than the clock
		kept.admitted = append(kept.admitted, min(t, at))
	}
	young := func(at Micros) (n int64) {
		for i := len(kept.admitted) - 1; i >= 0 && at-kept.admitted[i] < b.s.Period; i-- {
			n++
		}
		return n
	}
	log := kept.admitted
	switch n := young(at); {
	case a.Cost < 0 && a.ChargedAt > 0 && at-a.ChargedAt >= b.s.Period: // the charge to undo has left the window
		d.Allowed = true
	case a.Cost < 0:
		d.Allowed = true
		log = nil
		for back, i := a.Cost, len(kept.admitted)-1; i >= 0; i-- { // the newest unit first
			if at-kept.admitted[i] < b.s.Period && back < 0 && (a.ChargedAt == 0 || kept.admitted[i] <= a.ChargedAt) {
				back++
			} else {
				log = append(log, kept.admitted[i])
			}
		}
		slices.Reverse(log)
	case a.Cost > b.s.Rate:
		d.Never = true
	case n+a.Cost <= b.s.Rate:
		d.Allowed = true
		for range a.Cost {
			log = append(log, at)
		}
	default: // try every moment at which a unit leaves the window
		for _, t := range kept.admitted {
			if leaves := t + b.s.Period; leaves > at && young(leaves)+a.Cost <= b.s.Rate {
				d.RetryAfter = leaves - at
				break
			}
		}
	}
	d.Remaining = b.s.Rate
	for i := len(log) - 1; i >= 0 && at-log[i] < b.s.Period; i-- {
		d.Remaining--
	}
	d.Value = d.Remaining
	if n := len(log); n > 0 {
		d.ResetAfter = max(0, log[n-1]+b.s.Period-at)
	}
	switch {
	case d.Never || a.DryRun:
	case d.Allowed && a.Cost != 0: // a unit that has left the window does not count again if the clock steps back
		i, _ := slices.BinarySearch(log, at-b.s.Period+1)
		b.admitted = log[i:]
		if b.seen = len(b.admitted) > 0; b.seen {
			b.ts = b.admitted[len(b.admitted)-1]
		}
	default:
		*b = kept
	}
	return delay(d, behind)
}

// slidingReference applies the formula of sliding_counter.go literally. It finds the retry time by search.
type slidingReference struct {
	s Spec
	watch
	cur, prev int64
}

func (b *slidingReference) decide(now Micros, a Charge) (d Decision) {
	kept := *b
	period := int64(b.s.Period / b.tick)
	at, behind := kept.read(now)
	counts := func(t int64) (cur, prev int64) {
		switch t/period - int64(kept.ts/b.tick)/period {
		case 0:
			return kept.cur, kept.prev
		case 1:
			return 0, kept.cur
		default:
			return 0, 0
		}
	}
	used := func(t int64) *big.Rat {
		cur, prev := counts(t)
		return plus(whole(cur), times(whole(prev), big.NewRat(period-t%period, period)))
	}
	rate, t := whole(b.s.Rate), int64(at/b.tick)
	fits := func(t int64) bool { // in integers, because the search calls it often
		cur, prev := counts(t)
		return (cur+a.Cost)*period+prev*(period-t%period) <= b.s.Rate*period
	}
	cur, prev := counts(t)
	switch {
	case a.Cost < 0 && a.ChargedAt > 0 && int64(a.ChargedAt/b.tick)/period != t/period:
		d.Allowed = true
	case a.Cost < 0:
		d.Allowed = true
		back := new(big.Rat).Neg(new(big.Rat).SetInt64(a.Cost))
		fromCur := least(back, whole(cur))
		fromPrev := least(minus(back, fromCur), whole(prev))
		cur, prev = cur-down(fromCur).Int64(), prev-down(fromPrev).Int64()
	case a.Cost > b.s.Rate:
		d.Never = true
	case !less(rate, plus(used(t), whole(a.Cost))):
		d.Allowed = true
		cur += a.Cost
	default: // from here on the weighted count only falls
		from, to := t, t+2*period // sort.Search is not used because its int has 32 bits on some processors
		for from < to {
			if middle := from + (to-from)/2; fits(middle) {
				to = middle
			} else {
				from = middle + 1
			}
		}
		d.RetryAfter = b.after(at, big.NewInt(from-t))
	}
	done := *b
	done.cur, done.prev, done.ts, done.seen = cur, prev, b.startOfTick(at), true
	d.Remaining = notNegative(down(minus(rate, plus(whole(cur), times(whole(prev), big.NewRat(period-t%period, period))))))
	d.Value = d.Remaining
	switch {
	case cur > 0:
		d.ResetAfter = b.after(at, big.NewInt(2*period-t%period))
	case prev > 0:
		d.ResetAfter = b.after(at, big.NewInt(period-t%period))
	}
	switch {
	case d.Never || a.DryRun || a.Cost < 0 && !b.seen:
	case d.Allowed && a.Cost != 0:
		*b = done
	default:
		*b = kept
	}
	return delay(d, behind)
}

// exact is 2^53. Doubles represent every integer up to it exactly.
var exact = new(big.Int).Lsh(big.NewInt(1), 53)

// mostTokens returns the largest capacity + max_reserved of a token bucket that counts in the given tick.
func mostTokens(s Spec, tick Micros) int64 {
	rate, period := big.NewInt(s.Rate), big.NewInt(int64(s.Period/tick))
	g := new(big.Int).GCD(nil, nil, rate, period)
	p, q := new(big.Int).Div(rate, g), new(big.Int).Div(period, g)
	return new(big.Int).Div(new(big.Int).Sub(exact, p), q).Int64()
}

// mostWindow returns the largest capacity + max_reserved of a fixed window that counts in the given tick,
// for a decision at MaxTime, where times use half of the exact range.
func mostWindow(s Spec, tick Micros) int64 {
	period := big.NewInt(int64(s.Period / tick))
	if s.Calendar != nil {
		period = big.NewInt(int64(s.Calendar.Longest))
	}
	windows := new(big.Int).Div(new(big.Int).Sub(exact, big.NewInt(int64(MaxTime))), period)
	windows.Sub(windows, big.NewInt(1))
	n := windows.Mul(windows, big.NewInt(s.Rate))
	if all := new(big.Int).Sub(exact, big.NewInt(s.Rate)); n.Cmp(all) > 0 {
		n = all
	}
	return n.Int64()
}

// tickOf returns 1 us if the numbers of s fit the exact range in microseconds, else 1 ms.
func tickOf(s Spec) Micros {
	capacity := valueOr(s.Capacity, s.Rate)
	reserved := valueOr(s.MaxReserved, 0)
	fits := true
	switch {
	case s.Minimum != nil:
		fits = fitsGuaranteed(s)
	case s.Kind == LeakyBucket:
		fits = valueOr(s.Capacity, 0)+1 <= mostTokens(s, 1)
	case s.Kind == TokenBucket:
		fits = capacity+reserved <= mostTokens(s, 1)
	case s.Kind == FixedWindow:
		fits = capacity+reserved <= mostWindow(s, 1)
	case s.Kind == SlidingWindow:
		n := new(big.Int).Mul(big.NewInt(3*s.Rate), big.NewInt(int64(s.Period)))
		fits = n.Cmp(exact) <= 0
	}
	if fits {
		return 1
	}
	return 1000
}

// fitsGuaranteed reports whether both parts of a guaranteed bucket fit the exact range in microseconds. They
// count in parts of 1/q unit, where q is the smallest number that makes both inflows per microsecond whole numbers.
func fitsGuaranteed(s Spec) bool {
	f1, f2 := big.NewRat(s.Minimum.Units, int64(s.Minimum.Period)), big.NewRat(s.Rate, int64(s.Period))
	q := lcm(f1.Denom(), f2.Denom())
	most := new(big.Rat).Add(f1, f2)
	most.Add(most, whole(s.Minimum.Units+valueOr(s.Capacity, s.Rate)))
	return most.Mul(most, new(big.Rat).SetInt(q)).Cmp(new(big.Rat).SetInt(exact)) <= 0
}
