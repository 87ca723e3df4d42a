package algorithms

import (
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type penaltyReference struct {
	s      Spec
	bucket reference
	denied []Micros
	blocks int64
	from   Micros
	until  Micros
}

func (b *penaltyReference) lasts(k int64) Micros {
	span := new(big.Int).Lsh(big.NewInt(int64(b.s.Penalty.For)), uint(min(k-1, 100)))
	if longest := big.NewInt(int64(b.s.Penalty.Max)); longest.Cmp(span) < 0 {
		span = longest
	}
	return Micros(span.Int64())
}

// remembered returns a copy of b at time now, without denials and blocks that no longer count. If the clock
// stepped back by more than a minute, the times in the copy move back with it.
func (b *penaltyReference) remembered(now Micros) penaltyReference {
	is := *b
	is.denied = slices.Clone(b.denied)
	last := slices.Max(append(is.denied, is.from))
	if b.clock().seen {
		last = max(last, b.clock().ts)
	}
	if back := last - now; back > minute {
		for i := range is.denied {
			is.denied[i] -= back
		}
		is.from, is.until = is.from-back, is.until-back
	}
	young := slices.ContainsFunc(is.denied, func(t Micros) bool { return now-t < b.s.Period })
	if !young && (is.blocks == 0 || now-is.until >= b.s.Penalty.Max) {
		is.denied, is.blocks, is.from, is.until = nil, 0, 0, 0
	}
	return is
}

func (b *penaltyReference) clock() *watch { return b.bucket.clock() }

func (b *penaltyReference) decide(now Micros, a Charge) Decision {
	is := b.remembered(now)
	b.clock().denialsStored = is.blocks > 0 || len(is.denied) > 0
	clock := *b.clock()
	at, behind := clock.read(now)
	var d Decision
	if a.Cost >= 0 && at < is.until {
		d = b.decideBlocked(now, a)
		if !d.Never {
			d.Allowed, d.Wait, d.Blocked = false, 0, is.until-at+behind
			d.RetryAfter = max(d.RetryAfter, d.Blocked)
		}
	} else {
		d = b.bucket.decide(now, a)
		if !d.Allowed && !d.Never && a.Cost > 0 && !a.DryRun {
			is.count(at)
			if at < is.until {
				d.Blocked = is.until - at + behind
				d.RetryAfter = max(d.RetryAfter, d.Blocked)
			}
		}
	}
	never := d.Never && (!b.s.TakesDenied || a.Cost >= 0 && at < is.until)
	if !a.DryRun && !never {
		*b = is
	}
	return d
}

func (b *penaltyReference) decideBlocked(now Micros, a Charge) Decision {
	dryRun := a
	dryRun.DryRun, dryRun.Free = true, true // a blocked request is not charged, also by a limit that charges denied ones
	own := b.bucket.decide(now, dryRun)
	if own.Never {
		return own
	}
	d := b.bucket.decide(now, Charge{Hash: a.Hash, DryRun: true})
	d.RetryAfter = own.RetryAfter
	if !a.DryRun {
		b.bucket.decide(now, Charge{Hash: a.Hash})
	}
	return d
}

func (b *penaltyReference) count(at Micros) {
	if b.blocks > 0 && at-b.until >= b.s.Penalty.Max {
		b.blocks, b.from, b.until = 0, 0, 0
	}
	b.denied = slices.DeleteFunc(b.denied, func(t Micros) bool { return at-t >= b.s.Period })
	b.denied = append(b.denied, at)
	last := slices.Max(b.denied)
	b.denied[len(b.denied)-1] = last
	if int64(len(b.denied)) == b.s.Penalty.After {
		b.blocks++
		b.denied, b.from, b.until = nil, last, last+b.lasts(b.blocks)
	}
}

func penalized(after int64, first, longest Micros) Spec {
	return Spec{Kind: TokenBucket, Rate: 10, Period: 10 * sec, Penalty: &Penalty{After: after, For: first, Max: longest}}
}

func TestEachBlockLastsTwiceAsLong(t *testing.T) {
	l := mustCompile(t, penalized(3, minute, 4*minute))
	var s State
	decide := func(at Micros, cost int64) Decision {
		var d Decision
		s, d = l.Take(s, t0+at, Charge{Cost: cost})
		return d
	}
	check := func(at Micros, cost int64, allowed bool, retry, blocked Micros) {
		t.Helper()
		if d := decide(at, cost); d.Allowed != allowed || d.RetryAfter != retry || d.Blocked != blocked {
			t.Errorf("at %d us, cost %d: got %+v, want allowed %t, retry after %d, blocked %d", at, cost, d, allowed, retry, blocked)
		}
	}
	at := Micros(0)
	for _, block := range []Micros{minute, 2 * minute, 4 * minute, 4 * minute} {
		check(at, 10, true, 0, 0)
		check(at, 1, false, sec, 0)
		check(at, 11, false, 0, 0) // can never fit, so not counted
		check(at+us, 1, false, sec-us, 0)
		check(at+2*us, 0, true, 0, 0)
		check(at+2*us, 1, false, block, block) // the third denial
		at += 2*us + block
		check(at-minute+us, 1, false, minute-us, minute-us) // tokens are left
		check(at-minute+us, 0, false, minute-us, minute-us)
		check(at-us, 1, false, us, us)
		check(at-us, 11, false, 0, 0)
	}
	check(at, 10, true, 0, 0)
	check(at, 1, false, sec, 0)
	at += 4 * minute // Penalty.Max after the last block, the lengths begin again
	check(at, 10, true, 0, 0)
	check(at, 1, false, sec, 0)
	check(at, 1, false, sec, 0)
	check(at, 1, false, minute, minute)
}

func TestDenialsCountWithinAPeriodOnly(t *testing.T) {
	for last, blocks := range map[Micros]bool{10*sec - us: true, 10 * sec: false} {
		l := mustCompile(t, penalized(3, minute, minute))
		s := State{By: l, At: t0}
		for i, at := range []Micros{0, 0, last} {
			var d Decision
			s, d = l.Take(s, t0+at, Charge{Cost: 10})
			if d.Allowed && at < 10*sec || d.Blocked > 0 != (blocks && i == 2) {
				t.Errorf("charge %d, the last one after %d us: %+v; want the last one blocked: %t, and no other", i, last, d, blocks)
			}
			if i == 2 {
				continue
			}
			s.Value = 0
		}
	}
}

func TestARefundIsAcceptedDuringABlock(t *testing.T) {
	l := mustCompile(t, penalized(1, minute, minute))
	s, _ := l.Take(State{}, t0, Charge{Cost: 10})
	s, d := l.Take(s, t0, Charge{Cost: 1})
	if d.Allowed || d.Blocked != minute {
		t.Fatalf("first denial: %+v; want denied and blocked %v", d, minute)
	}
	s, d = l.Take(s, t0, Charge{Cost: -4})
	if !d.Allowed || d.Remaining != 4 {
		t.Fatalf("refund: %+v; want allowed and 4 remaining", d)
	}
	if _, d = l.Take(s, t0, Charge{Cost: 1}); d.Allowed || d.RetryAfter != minute || d.Remaining != 4 {
		t.Errorf("still blocked: %+v; want denied, retry after %v and 4 remaining", d, minute)
	}
}

// If a clock steps back by more than a minute, the end of a block moves back with it. A shorter step makes the block
// last longer by the step.
func TestClockStepsKeepBlocks(t *testing.T) {
	for _, step := range []struct{ back, blocked Micros }{{0, hour}, {minute, hour + minute}, {minute + us, hour}, {Day, hour}} {
		l := mustCompile(t, penalized(1, hour, hour))
		s, _ := l.Take(State{}, t0, Charge{Cost: 10})
		s, _ = l.Take(s, t0, Charge{Cost: 1})
		s, d := l.Take(s, t0-step.back, Charge{Cost: 1})
		if d.Blocked != step.blocked || d.RetryAfter != step.blocked {
			t.Errorf("%d us back: %+v; want blocked %v and retry after %v", step.back, d, step.blocked, step.blocked)
		}
		if _, d = l.Take(s, t0-step.back+d.Blocked, Charge{Cost: 1}); !d.Allowed {
			t.Errorf("%d us back, when the block is over: %+v; want allowed", step.back, d)
		}
	}
}

// If a cost can never fit, no bucket of the group counts a denial.
func TestAGroupCountsDenialsOnlyOfLimitsThatDeny(t *testing.T) {
	group := func(costs ...int64) []Bucket {
		var all []Bucket
		for _, cost := range costs {
			all = append(all, bucket(t, penalized(1, minute, minute), cost))
		}
		return all
	}
	g := group(10, 1)
	g[0].State, _ = g[0].Limit.Take(State{}, t0, Charge{Cost: 1})
	if TakeAll(t0, g) || g[0].Decision.Blocked != minute || g[0].Decision.RetryAfter != minute || !g[1].Decision.Allowed || g[1].State.By != nil {
		t.Errorf("one denied: %+v; want denied, blocked %v, retry after %v, allowed and By nil", g, minute, minute)
	}
	g = group(10, 11)
	g[0].State, _ = g[0].Limit.Take(State{}, t0, Charge{Cost: 1})
	if TakeAll(t0, g) || g[0].Decision.Blocked != 0 || g[0].Decision.RetryAfter != sec || g[0].State.Denials != nil {
		t.Errorf("one cost can never fit: %+v; want denied, blocked 0, retry after %v and denials nil", g, sec)
	}
}

func TestABlockAdmitsNothing(t *testing.T) {
	each(t, 1, 2000, func(t *rapid.T, _ dice, m moment) {
		d := m.before.Denials
		if d == nil || m.now >= d.Until || m.now < m.before.At || m.charge.Cost < 0 {
			return
		}
		if moved := m.limit.denialsAt(&m.before, m.now); moved == nil || m.now >= moved.Until {
			return // the clock stepped back past the block
		}
		if m.got.Allowed {
			t.Fatalf("at %d %+v of %+v, blocked until %d: %+v; want denied", m.now, m.charge, m.before, d.Until, m.got)
		}
		if is := m.after.Denials; is == nil || is.Blocks != d.Blocks || is.Until > d.Until || len(is.Times) > len(d.Times) {
			t.Fatalf("at %d %+v, blocked: %+v was %+v; want is not nil, is.Blocks %v, is.Until at most %v and len(is.Times) at most %v", m.now, m.charge, is, d, d.Blocks, d.Until, len(d.Times))
		}
	})
}

func TestPenaltySpecs(t *testing.T) {
	for _, p := range []Penalty{{0, sec, sec}, {MaxPenaltyAfter + 1, sec, sec}, {1, 0, sec}, {1, sec, sec - us}, {1, sec, MaxBlock + us}} {
		s := penalized(p.After, p.For, p.Max)
		if _, err := Compile(s); err == nil {
			t.Errorf("%+v compiles; want an error", p)
		}
	}
	for _, p := range []Penalty{{1, us, us}, {MaxPenaltyAfter, sec, MaxBlock}, {1, MaxBlock, MaxBlock}} {
		if _, err := Compile(penalized(p.After, p.For, p.Max)); err != nil {
			t.Errorf("%+v: %v; want no error", p, err)
		}
	}
	s := penalized(1, sec, sec)
	s.Overdraw = true
	if _, err := Compile(s); err == nil {
		t.Error("Overdraw and a penalty compile together; want an error")
	}
	if _, err := Split(penalized(1, sec, sec), 2); err == nil {
		t.Error("a limit with a penalty was split; want an error")
	}
}

// The cost of the settled reservation equals its estimate.
func TestABlockAllowsASettlementWithoutDifference(t *testing.T) {
	l := mustCompile(t, Spec{Kind: TokenBucket, Rate: 1, Period: 60 * sec, Penalty: &Penalty{After: 1, For: 60 * sec, Max: 60 * sec}})
	s, _ := l.Take(State{}, t0, Charge{Cost: 1})
	s, d := l.Take(s, t0, Charge{Cost: 1})
	if d.Blocked != 60*sec {
		t.Fatalf("not blocked: %+v; want blocked %v", d, 60*sec)
	}
	if _, d = l.Take(s, t0+sec, Charge{Cost: 0, ChargedAt: t0, Settle: true}); !d.Allowed {
		t.Errorf("the settlement is denied: %+v", d)
	}
	if _, d = l.Take(s, t0+sec, Charge{Cost: 0}); d.Allowed {
		t.Errorf("the block does not deny: %+v", d)
	}
}
