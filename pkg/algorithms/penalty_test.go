package algorithms

import (
	"math/big"
	"slices"
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
	d := b.bucket.decide(now, Charge{Hash: a.Hash, DryRun: true})
	if own.Never { // the numbers are those of the bucket without the charge, also if the limit charges denied requests
		d.Allowed, d.Never, d.RetryAfter, d.Wait = false, true, own.RetryAfter, own.Wait
		return d
	}
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
