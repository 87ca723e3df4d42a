package algorithms

import "math/big"

// The reference implementations compute every algorithm from its written definition: in fractions of tokens
// instead of scaled integers, or by counting events. They are slow and allocate freely. They share only types
// and constants with the code, such as Spec, Charge and Decision.

type reference interface {
	decide(now Micros, a Charge) Decision
	clock() *watch
}

func referenceOf(s Spec) reference {
	c := watch{tick: tickOf(s)}
	switch {
	case s.Penalty != nil:
		inner := s
		inner.Penalty = nil
		return &penaltyReference{s: s, bucket: referenceOf(inner)}
	case s.Kind == LeakyBucket:
		return &leakyReference{s: s, watch: c}
	case s.Kind == SlidingWindow:
		return &slidingReference{s: s, watch: c}
	case s.Kind == SlidingLog:
		return &logReference{s: s, watch: c}
	case s.Minimum != nil:
		return &guaranteedReference{s: s, watch: c}
	case s.TakesDenied || s.PerRequest:
		return &counterReference{s: s, watch: c}
	case s.Kind == FixedWindow:
		return &windowReference{s: s, watch: c}
	default:
		return &tokenReference{s: s, watch: c}
	}
}

// watch is a bucket's clock. It counts ticks, and defines what happens if the machine's clock steps back.
type watch struct {
	tick          Micros
	seen          bool
	ts            Micros
	denialsStored bool // then the bucket does not start at initial again
}

// read returns the bucket's time, and how far the machine's clock is behind it. If the clock stepped back by more than
// a minute, read sets the bucket's clock back, too.
func (w *watch) read(now Micros) (at, behind Micros) {
	if w.seen && now < w.ts {
		if w.ts-now <= 60_000_000 {
			return w.ts, w.ts - now
		}
		w.ts = w.startOfTick(now)
	}
	return now, 0
}

func (w *watch) clock() *watch { return w }

func (w *watch) startOfTick(t Micros) Micros { return t / w.tick * w.tick }

// after returns the time from now to the start of the n-th tick after the tick of now, or 0 if n is not positive.
func (w *watch) after(now Micros, n *big.Int) Micros {
	if n.Sign() <= 0 {
		return 0
	}
	return (now/w.tick+Micros(n.Int64()))*w.tick - now
}

func (w *watch) ticks(from, to Micros) *big.Rat { return whole(int64(to/w.tick) - int64(from/w.tick)) }

func delay(d Decision, behind Micros) Decision {
	if !d.Allowed && !d.Never {
		d.RetryAfter += behind
	}
	for _, t := range []*Micros{&d.ResetAfter, &d.Wait} {
		if *t > 0 { // 0 means that the bucket is full already, or that the units are available already
			*t += behind
		}
	}
	return d
}

func whole(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func plus(a, b *big.Rat) *big.Rat  { return new(big.Rat).Add(a, b) }
func minus(a, b *big.Rat) *big.Rat { return new(big.Rat).Sub(a, b) }
func times(a, b *big.Rat) *big.Rat { return new(big.Rat).Mul(a, b) }
func over(a, b *big.Rat) *big.Rat  { return new(big.Rat).Quo(a, b) }
func less(a, b *big.Rat) bool      { return a.Cmp(b) < 0 }

func least(a, b *big.Rat) *big.Rat {
	if less(a, b) {
		return a
	}
	return b
}

func most(a, b *big.Rat) *big.Rat {
	if less(a, b) {
		return b
	}
	return a
}

func down(x *big.Rat) *big.Int {
	n, m := new(big.Int).DivMod(x.Num(), x.Denom(), new(big.Int))
	_ = m // Euclidean division: the denominator is positive, so n is rounded down
	return n
}

func up(x *big.Rat) *big.Int {
	n := down(new(big.Rat).Neg(x))
	return n.Neg(n)
}

func notNegative(x *big.Int) int64 { return max(0, x.Int64()) }

func (w *watch) flow(units int64, period Micros) *big.Rat {
	return big.NewRat(units, int64(period/w.tick))
}

type tokenReference struct {
	s Spec
	watch
	level *big.Rat
}

// undo returns what a canceled charge of units refunds: the units less the inflow since the charge, and at least
// 0. A negative inflow means that the clock stepped back, and nothing is refunded.
func undo(units, inflow *big.Rat) *big.Rat {
	if inflow.Sign() < 0 {
		return whole(0)
	}
	return most(whole(0), minus(units, inflow))
}

func (b *tokenReference) decide(now Micros, a Charge) (d Decision) {
	kept := *b // the state after a denial
	capacity := whole(valueOr(b.s.Capacity, b.s.Rate))
	initial := whole(valueOr(b.s.Initial, valueOr(b.s.Capacity, b.s.Rate)))
	reserved := whole(valueOr(b.s.MaxReserved, 0))
	if b.s.MaxReserved == nil {
		reserved = minus(whole(mostTokens(b.s, b.tick)), capacity)
	}
	flow := b.flow(b.s.Rate, b.s.Period)
	toFull := func(level *big.Rat) *big.Int { return up(over(minus(capacity, level), flow)) }

	at, behind := kept.read(now)
	if kept.seen && !kept.denialsStored && less(initial, capacity) && at >= kept.ts+kept.after(kept.ts, toFull(kept.level))+Day {
		kept.seen = false // the bucket was full for a day, so it starts at initial again
	}
	if !kept.seen {
		kept.level, kept.ts = initial, b.startOfTick(at)
		kept.seen = less(initial, capacity)
	}
	level := least(capacity, plus(kept.level, times(flow, b.ticks(kept.ts, at))))
	cost, r := whole(a.Cost), whole(0)
	if a.Scaled {
		cost = over(cost, b.unit())
	}
	if a.Reserve {
		r = reserved
	}
	short := minus(minus(cost, r), level) // denied if this is above 0
	takes := true
	turn := -a.MaxWait // how much longer than MaxWait the wait is
	tooLong := false   // even if the bucket is full
	if a.Reserve && a.MaxWait > 0 && a.Cost >= 0 {
		tooLong = up(over(minus(cost, capacity), flow)).Int64() > int64(a.MaxWait/b.tick)
		turn = b.after(at, up(over(minus(cost, level), flow))) - a.MaxWait
	}
	switch {
	case tooLong:
		d.Never, takes = true, false
	case turn+a.MaxWait > 0 && turn+behind > 0:
		if d.RetryAfter, takes = turn, false; short.Sign() > 0 {
			d.RetryAfter = max(turn, b.after(at, up(over(short, flow))))
		}
		d.Never = less(plus(capacity, r), cost)
	case a.Cost < 0:
		back := minus(whole(0), cost)
		if a.ChargedAt > 0 {
			back = undo(least(back, whole(mostTokens(b.s, b.tick))), times(flow, b.ticks(a.ChargedAt, at)))
		}
		level, d.Allowed = least(capacity, plus(level, back)), true
	case short.Sign() <= 0:
		level, d.Allowed = minus(level, cost), true
		d.Wait = b.after(at, up(over(minus(whole(0), level), flow)))
	case b.s.Overdraw:
		level = most(least(level, minus(whole(0), reserved)), minus(level, cost))
		d.RetryAfter = b.after(at, up(over(minus(least(cost, capacity), level), flow)))
	case less(plus(capacity, r), cost):
		d.Never, takes = true, false
	default:
		d.RetryAfter, takes = b.after(at, up(over(short, flow))), false
	}
	d.Value, d.Remaining = down(times(level, b.unit())).Int64(), notNegative(down(level))
	d.ResetAfter = b.after(at, toFull(level))
	if d.Never {
		d.RetryAfter = 0
	}
	if a.Cost < 0 && !kept.seen {
		takes = false // the bucket is full, so there is nothing to refund
	}
	switch created := kept.seen && !b.seen || kept.ts == b.startOfTick(now) && less(initial, capacity) && kept.level == initial; {
	case d.Never:
	case takes && a.Cost != 0 && !a.DryRun:
		kept.level, kept.ts, kept.seen = level, b.startOfTick(at), true
		*b = kept
	case !a.DryRun, created:
		*b = kept
	}
	return delay(d, behind)
}

// unit returns the smallest number that makes its product with the inflow per tick a whole number.
func (b *tokenReference) unit() *big.Rat {
	return new(big.Rat).SetInt(b.flow(b.s.Rate, b.s.Period).Denom())
}

type leakyReference struct {
	s Spec
	watch
	queue *big.Rat
}

func (b *leakyReference) decide(now Micros, a Charge) (d Decision) {
	kept := *b
	places := whole(valueOr(b.s.Capacity, 0) + 1)
	drain := b.flow(b.s.Rate, b.s.Period)
	at, behind := kept.read(now)
	if !kept.seen {
		kept.queue, kept.ts = whole(0), b.startOfTick(at)
	}
	queue := most(whole(0), minus(kept.queue, times(drain, b.ticks(kept.ts, at))))
	turn := b.after(at, up(over(queue, drain)))
	if turn > 0 {
		turn += behind
	}
	cost := new(big.Rat).SetInt64(a.Cost)
	charged, room := queue, minus(places, queue)
	switch {
	case a.Cost < 0:
		back := minus(whole(0), cost)
		if a.ChargedAt > 0 {
			back = undo(least(back, places), times(drain, b.ticks(a.ChargedAt, at)))
		}
		charged, d.Allowed = most(whole(0), minus(queue, back)), true
	case less(places, cost):
		d.Never = true
	case less(room, cost):
		d.RetryAfter = b.after(at, up(over(minus(cost, room), drain))) + behind
	default:
		charged, d.Allowed, d.Wait = plus(queue, cost), true, turn
	}
	if a.Cost >= 0 && !d.Never && a.MaxWait > 0 && turn > a.MaxWait {
		charged = queue
		d = Decision{RetryAfter: max(d.RetryAfter, turn-a.MaxWait)}
	}
	left := minus(places, charged)
	d.Value, d.Remaining = down(times(left, new(big.Rat).SetInt(drain.Denom()))).Int64(), notNegative(down(left))
	if d.ResetAfter = b.after(at, up(over(charged, drain))); d.ResetAfter > 0 {
		d.ResetAfter += behind
	}
	switch {
	case d.Never || a.DryRun || a.Cost < 0 && !b.seen:
	case d.Allowed && a.Cost != 0:
		b.queue, b.ts, b.seen = charged, b.startOfTick(at), true
	default:
		*b = kept
	}
	return d
}

// guaranteedReference stores the units of the guaranteed part (sure) and of the bank.
type guaranteedReference struct {
	s Spec
	watch
	sure, bank *big.Rat
}

func (b *guaranteedReference) decide(now Micros, a Charge) (d Decision) {
	kept := *b
	capacity1, capacity2 := whole(b.s.Minimum.Units), whole(valueOr(b.s.Capacity, b.s.Rate))
	initial := whole(valueOr(b.s.Initial, valueOr(b.s.Capacity, b.s.Rate)))
	flow1, flow2 := b.flow(b.s.Minimum.Units, b.s.Minimum.Period), b.flow(b.s.Rate, b.s.Period)
	toFull := func(sure, bank *big.Rat) *big.Rat {
		return most(over(minus(capacity1, sure), flow1), over(minus(capacity2, bank), flow2))
	}
	at, behind := kept.read(now)
	restarted := false
	if kept.seen && !kept.denialsStored && less(initial, capacity2) && at >= kept.ts+kept.after(kept.ts, up(toFull(kept.sure, kept.bank)))+Day {
		kept.seen, restarted = false, true
	}
	if !kept.seen {
		kept.sure, kept.bank, kept.ts = capacity1, initial, b.startOfTick(at)
		kept.seen = less(initial, capacity2)
		restarted = kept.seen
	}
	elapsed := b.ticks(kept.ts, at)
	sure := least(capacity1, plus(kept.sure, times(flow1, elapsed)))
	bank := least(capacity2, plus(kept.bank, times(flow2, elapsed)))
	cost := new(big.Rat).SetInt64(a.Cost)
	switch missing := minus(cost, plus(sure, bank)); {
	case a.Cost < 0:
		d.Allowed = true
		back := minus(whole(0), cost)
		if a.ChargedAt > 0 {
			back = undo(least(back, plus(capacity1, capacity2)), times(plus(flow1, flow2), b.ticks(a.ChargedAt, at)))
		}
		both := plus(plus(sure, bank), back) // the bank is filled first
		bank = least(capacity2, plus(bank, back))
		sure = least(capacity1, minus(both, bank))
	case less(plus(capacity1, capacity2), cost):
		d.Never = true
	case missing.Sign() <= 0:
		d.Allowed = true
		paid := least(sure, cost)
		sure, bank = minus(sure, paid), minus(bank, minus(cost, paid))
	default:
		// First both parts fill, then only the one that is not full yet.
		full1, full2 := over(minus(capacity1, sure), flow1), over(minus(capacity2, bank), flow2)
		first, rest := least(full1, full2), flow1
		if less(full1, full2) {
			rest = flow2
		}
		t := over(missing, plus(flow1, flow2))
		if less(first, t) {
			t = plus(first, over(minus(missing, times(first, plus(flow1, flow2))), rest))
		}
		d.RetryAfter = b.after(at, up(t))
	}
	d.Value, d.Remaining = down(times(plus(sure, bank), new(big.Rat).SetInt(lcm(flow1.Denom(), flow2.Denom())))).Int64(), notNegative(down(plus(sure, bank)))
	d.ResetAfter = b.after(at, up(toFull(sure, bank)))
	switch {
	case d.Never || a.Cost < 0 && !kept.seen:
	case d.Allowed && a.Cost != 0 && !a.DryRun:
		b.sure, b.bank, b.ts, b.seen = sure, bank, b.startOfTick(at), true
	case !a.DryRun, restarted:
		*b = kept
	}
	return delay(d, behind)
}

func lcm(a, b *big.Int) *big.Int {
	n := new(big.Int).Mul(a, b)
	return n.Div(n, new(big.Int).GCD(nil, nil, a, b))
}
