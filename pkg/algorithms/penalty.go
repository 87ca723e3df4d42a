package algorithms

// Penalty blocks a bucket after repeated denials.
//
// After a number of denials within one period of the limit, the bucket denies everything for a while,
// whatever it holds. Each further block lasts twice as long, up to Max. If no block follows within Max after
// the end of the last one, the next block has the length of the first again.
//
//	denied at times t1 <= … <= tn (n = After), tn - t1 < period: blocked from tn for min(For*2^(k-1), Max)
//	for the k-th block in a row
//	blocked: denied, retry_after = max(rest of the block, retry_after without the penalty)
//
// Requests denied by a block do not count as denials, and even a limit with TakesDenied does not charge them.
// Dry runs, costs of 0 and costs that can never fit do not count as denials. Refunds are allowed during a
// block and do not end it.
type Penalty struct {
	// After is the number of denials within a period that starts a block; 0 means no penalty.
	After int64
	// For is the length of the first block. Max is the length of the longest block. A block that starts within
	// Max after the end of another one is twice as long as that one, up to Max.
	For, Max Micros
}

const (
	// MaxPenaltyAfter is the largest Penalty.After. It is bounded because every denial stores the times of
	// all counted denials again.
	MaxPenaltyAfter = 100
	// MaxBlock is the largest Penalty.Max: ten years.
	MaxBlock = 3650 * Day
)

// Denials is the state of a bucket's Penalty. Successive Denials may share the array of Times, as States
// share State.Log.
type Denials struct {
	// Times has the times of the denials since the last block, oldest first. Those that are too old to count may be
	// missing.
	Times []Micros
	// Blocks is the number of blocks in a row, 0 for none. The last of them ends at Until.
	Blocks int64
	Until  Micros
}

// block returns the length of the k-th block in a row.
func (p Penalty) block(k int64) Micros {
	span := p.For
	for ; k > 1 && span < p.Max; k-- {
		span = min(2*span, p.Max)
	}
	return span
}

// denialSpan returns the span of time within which denials add up to a block.
func (l *Limit) denialSpan() Micros { return Micros(l.period) * l.tick }

// denialsAt returns the denials and blocks of s that still count at time now; nil if there are none. If the
// clock stepped back by more than a minute, denialsAt moves all their times back as far, so that no block
// lasts longer than intended.
func (l *Limit) denialsAt(s *State, now Micros) *Denials {
	was := s.Denials
	if l.Penalty.After == 0 || s.By.Kind != l.Kind {
		return nil
	}
	last := was.Until - l.Penalty.block(was.Blocks) // the time of the last block, denial or charge
	if n := len(was.Times); n > 0 {
		last = max(last, was.Times[n-1])
	}
	if l.seen(s) {
		last = max(last, s.At)
	}
	if back := last - now; back > maxStepBack {
		moved := &Denials{Blocks: was.Blocks, Until: was.Until - back}
		for _, t := range was.Times {
			moved.Times = append(moved.Times, t-back)
		}
		was = moved
	}
	if now >= l.forgottenAt(was) {
		return nil
	}
	return was
}

// forgottenAt returns the moment from which nothing in d counts.
func (l *Limit) forgottenAt(d *Denials) (at Micros) {
	if n := len(d.Times); n > 0 {
		at = d.Times[n-1] + l.denialSpan()
	}
	if d.Blocks > 0 {
		at = max(at, d.Until+l.Penalty.Max)
	}
	return at
}

// counted returns the state of the Penalty after one more denial at time now. The denial may start a block. was is
// the state before it, or nil.
func (l *Limit) counted(was *Denials, now Micros) *Denials {
	p, d := l.Penalty, &Denials{}
	if was != nil {
		if now < was.Until+p.Max {
			d.Blocks, d.Until = was.Blocks, was.Until
		}
		d.Times = was.Times
		for len(d.Times) > 0 && d.Times[0] <= now-l.denialSpan() {
			d.Times = d.Times[1:]
		}
		if n := len(d.Times); n > 0 {
			now = max(now, d.Times[n-1])
		}
	}
	if int64(len(d.Times))+1 < p.After {
		d.Times = append(d.Times, now)
		return d
	}
	d.Times = nil
	if d.Blocks == 0 || p.block(d.Blocks) < p.Max {
		d.Blocks++
	}
	d.Until = now + p.block(d.Blocks)
	return d
}

// takeCounted is Take for a limit with a Penalty, or for a State that contains Denials.
func (l *Limit) takeCounted(s State, now Micros, a Charge) (State, Decision) {
	was := s
	a.counted = true
	if s.Denials != nil {
		s.Denials = l.denialsAt(&s, now)
	}
	at := l.timeOf(&s, now)
	if s.Denials != nil && a.Cost >= 0 && !(a.Settle && a.Cost == 0) && at < s.Denials.Until {
		d := l.blocked(s, now, a)
		if d.Never {
			return was, d
		}
		return l.afterDenial(was, now, a), d
	}
	next, d := l.Take(s, now, a)
	next.Denials = s.Denials
	switch {
	case a.DryRun, a.Free && !d.Allowed, d.Never && !l.takesDenied(&a):
		next.Denials = was.Denials
	case l.counts(&d, a):
		next.Denials, next.Peaks = l.counted(s.Denials, at), nil // a stored state has room for one of them
		if until := next.Denials.Until; at < until {
			d.Blocked, d.RetryAfter = until-now, max(d.RetryAfter, until-now)
		}
	}
	return next, d
}

// timeOf returns the time at which a charge is decided. That is now, or the time of the last charge if the
// clock has stepped back by up to a minute since (as in start).
func (l *Limit) timeOf(s *State, now Micros) Micros {
	if l.seen(s) && now < s.At && s.At-now <= maxStepBack {
		return s.At
	}
	return now
}

// seen reports whether s has the time of a last charge of this algorithm.
func (l *Limit) seen(s *State) bool {
	return s.By != nil && s.By.Kind == l.Kind && (l.Kind != SlidingLog || len(s.Log) > 0)
}

func (l *Limit) counts(d *Decision, a Charge) bool {
	return l.Penalty.After > 0 && !d.Allowed && !d.Never && a.Cost > 0 && !a.DryRun && !a.Free
}

// blocked returns the decision on charge a for a bucket that a Penalty blocks: a denial, and Never if the cost can
// never fit.
func (l *Limit) blocked(s State, now Micros, a Charge) Decision {
	a.DryRun, a.Free = true, true // a blocked request is not charged, also by a limit that charges denied ones
	_, own := l.Take(s, now, a)
	if own.Never {
		return own
	}
	_, d := l.Take(s, now, Charge{Hash: a.Hash, DryRun: true, counted: true})
	d.Allowed, d.Wait, d.Blocked = false, 0, s.Denials.Until-now
	d.RetryAfter = max(own.RetryAfter, d.Blocked)
	return d
}
