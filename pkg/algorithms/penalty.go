package algorithms

// Penalty blocks a bucket that is asked for more than it has again and again. After so many denials
// within a period of the limit it is blocked for a while, whatever it holds; each block that follows
// lasts twice as long, up to Max, and Max after the last block has ended all is forgotten.
//
//	denied at times t1 <= … <= tn (n = After), tn - t1 < period: blocked from tn for min(For*2^(k-1), Max)
//	where this is the k-th block in a row
//	blocked: denied, retry_after = max(rest of the block, its own)
//
// What is denied by a block is not counted, nor taken where denials are (TakesDenied). Looks, costs of 0
// and costs that can never fit do not count. A give-back is allowed all the same, and ends no block.
type Penalty struct {
	// After is how many denials within a period block; 0: there is no penalty.
	After int64
	// For is how long the first block lasts, Max the longest, and how long after its end it counts.
	For, Max Micros
}

const (
	// MaxPenaltyAfter is the largest Penalty.After: the time of each denial is remembered, and
	// written with each.
	MaxPenaltyAfter = 100
	// MaxBlock is the largest Penalty.Max: ten years.
	MaxBlock = 3650 * Day
)

// Denials is what a Penalty remembers of a bucket. Times are only cut and appended to, as State.Log is.
type Denials struct {
	// Times of the denials since the last block, oldest first.
	Times []Micros
	// Blocks in a row, of which the last ends at Until; 0: none.
	Blocks int64
	Until  Micros
}

// block is how long the k-th block in a row lasts.
func (p Penalty) block(k int64) Micros {
	span := p.For
	for ; k > 1 && span < p.Max; k-- {
		span = min(2*span, p.Max)
	}
	return span
}

// span of time within which denials count together.
func (l *Limit) denialSpan() Micros { return Micros(l.Period) * l.Tick }

// denialsAt is what still counts, at time now, of the denials that s has; nil: nothing. A clock that stepped back by more
// than a minute takes them along, so that no block lasts longer than it was to.
func (l *Limit) denialsAt(s *State, now Micros) *Denials {
	was := s.Denials
	if l.Penalty.After == 0 || s.By.Kind != l.Kind {
		return nil
	}
	last := was.Until - l.Penalty.block(was.Blocks) // the latest moment there was
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

// forgottenAt is when nothing of d counts any more.
func (l *Limit) forgottenAt(d *Denials) (at Micros) {
	if n := len(d.Times); n > 0 {
		at = d.Times[n-1] + l.denialSpan()
	}
	if d.Blocks > 0 {
		at = max(at, d.Until+l.Penalty.Max)
	}
	return at
}

// counted is what is remembered of denials after one at time now.
func (l *Limit) counted(was *Denials, now Micros) *Denials {
	p, d := l.Penalty, &Denials{}
	if was != nil {
		if was.Blocks > 0 && now < was.Until+p.Max {
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

// takeCounted is Take where denials count, or did under other numbers.
func (l *Limit) takeCounted(s State, now Micros, a Ask) (State, Decision) {
	was := s
	if s.Denials != nil {
		s.Denials = l.denialsAt(&s, now)
	}
	at := l.timeOf(&s, now)
	if s.Denials != nil && a.Cost >= 0 && !(a.Settle && a.Cost == 0) && at < s.Denials.Until {
		d := l.blocked(s, now, a)
		if d.Never {
			return was, d
		}
		return l.Keep(was, now, a), d
	}
	next, d := l.Take(s, now, a)
	next.Denials = s.Denials
	switch {
	case a.Look, d.Never && !l.TakesDenied:
		next.Denials = was.Denials
	case l.counts(&d, a):
		next.Denials = l.counted(s.Denials, at)
		if until := next.Denials.Until; at < until {
			d.Blocked, d.RetryAfter = until-now, max(d.RetryAfter, until-now)
		}
	}
	return next, d
}

// timeOf is the time to reckon with: that of the last charge where the clock stepped back behind it by
// up to a minute, as begin says.
func (l *Limit) timeOf(s *State, now Micros) Micros {
	if l.seen(s) && now < s.At && s.At-now <= maxStepBack {
		return s.At
	}
	return now
}

// seen tells whether s has a clock.
func (l *Limit) seen(s *State) bool {
	return s.By != nil && s.By.Kind == l.Kind && (l.Kind != SlidingLog || len(s.Log) > 0)
}

// counts tells whether d, the answer to a, is a denial that a Penalty counts.
func (l *Limit) counts(d *Decision, a Ask) bool {
	return l.Penalty.After > 0 && !d.Allowed && !d.Never && a.Cost > 0 && !a.Look
}

// blocked answers a of s, which is blocked.
func (l *Limit) blocked(s State, now Micros, a Ask) Decision {
	a.Look = true
	_, own := l.Take(s, now, a)
	if own.Never {
		return own
	}
	_, d := l.Take(s, now, Ask{Hash: a.Hash, Look: true, counted: true})
	d.Allowed, d.Wait, d.Blocked = false, 0, s.Denials.Until-now
	d.RetryAfter = max(own.RetryAfter, d.Blocked)
	return d
}
