package simulate

import (
	"math"
	"math/bits"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// usage is what one bucket would have seen had everything been allowed: how deep its debt is, and
// how much was asked for in this period and the last.
type usage struct {
	row  *row
	at   int64 // tick of the last ask
	debt int64 // below full, in the limit's scale
	// sure is, for a guaranteed bucket, how far its guaranteed part is below full.
	sure   int64
	phase  int64 // tick within a period at which windows start
	window int64 // number of the period that at lies in
	cur    int64 // units asked for in it
	prev   int64 // of a sliding window, in the one before
}

// row sums up one limit.
type row struct {
	policy *descriptors.Policy

	asked, denied int64 // requests; denied: by this limit's own answer
	shadow, quota bool  // some place that asked it has this mode
	// peak is the most units that one key asked for in one period, which began at peakAt.
	peak    int64
	peakAt  algorithms.Micros
	peakKey []byte // opaque
	peakBy  []byte // the same key, to show
	// need is the deepest debt of a key: what it takes that none is denied.
	need int64
}

// maxDebt keeps sums of debts within an int64.
const maxDebt = math.MaxInt64 / 4

// charge takes cost and returns what the bucket would have had to hold for it to be allowed.
func (u *usage) charge(now algorithms.Micros, cost int64) (need int64) {
	u.advance(now)
	l := &u.row.policy.Limit
	u.cur = atMost(u.cur, cost)
	if u.cur < 0 { // given back: off this count, then the last
		u.cur, u.prev = 0, max(0, u.prev+u.cur)
	}
	switch l.Kind {
	case algorithms.TokenBucket, algorithms.LeakyBucket:
		u.debt = max(0, atMost(u.debt, times(cost, l.Q)))
		return ceilDiv(u.debt, l.Q)
	case algorithms.Guaranteed:
		u.chargeGuaranteed(l, times(cost, l.Q))
		return ceilDiv(u.debt, l.Q)
	case algorithms.FixedWindow:
		u.debt = max(0, atMost(u.debt, cost))
		return u.debt
	case algorithms.SlidingWindow:
		into := u.at - u.window*l.Period
		return atMost(u.cur, mulDivCeil(u.prev, l.Period-into, l.Period))
	case algorithms.SlidingLog: // its peak is counted, the log itself is not kept
	}
	return 0
}

// chargeGuaranteed charges the guaranteed part first and the bank with the rest; gives back to the
// bank first.
func (u *usage) chargeGuaranteed(l *algorithms.Limit, c int64) {
	if c < 0 {
		bank := min(-c, u.debt)
		u.debt, u.sure = u.debt-bank, max(0, u.sure-(-c-bank))
		return
	}
	paid := min(l.V1-u.sure, c)
	u.sure, u.debt = u.sure+paid, atMost(u.debt, c-paid)
}

// advance lets time pass.
func (u *usage) advance(now algorithms.Micros) {
	l := &u.row.policy.Limit
	tick := int64(now / l.Tick)
	window := floorDiv(tick-u.phase, l.Period)
	if l.Calendar != nil {
		window = l.Calendar.Window(now)
	}
	windows := window - u.window
	switch l.Kind {
	case algorithms.TokenBucket, algorithms.LeakyBucket:
		u.debt = drain(u.debt, l.P, tick-u.at)
	case algorithms.Guaranteed:
		u.debt, u.sure = drain(u.debt, l.P, tick-u.at), drain(u.sure, l.P1, tick-u.at)
	case algorithms.FixedWindow:
		if windows > 0 && clears(u.row.policy) {
			u.debt = 0
		} else {
			u.debt = drain(u.debt, l.Rate, windows)
		}
	case algorithms.SlidingWindow, algorithms.SlidingLog: // the counts below are all there is
	}
	if windows != 0 {
		last := u.cur
		if u.cur, u.prev = 0, 0; windows == 1 && l.Kind == algorithms.SlidingWindow {
			u.prev = last
		}
	}
	u.at, u.window = tick, window
}

// windowStart is when the period began that the last ask lies in.
func (u *usage) windowStart() algorithms.Micros {
	l := &u.row.policy.Limit
	if l.Calendar != nil {
		return l.Calendar.Start(u.window)
	}
	return algorithms.Micros(u.window*l.Period+u.phase) * l.Tick
}

// clears tells whether p's windows start full whatever the last one left.
func clears(p *descriptors.Policy) bool {
	return p.Reference || p.Limit.TakesDenied || p.Limit.PerRequest
}

// idle tells whether u equals a bucket never seen.
func (u *usage) idle() bool { return u.debt == 0 && u.sure == 0 && u.cur == 0 && u.prev == 0 }

// drain is what is left of debt after n times rate flowed in.
func drain(debt, rate, n int64) int64 {
	if n > 0 && debt > 0 {
		if n >= ceilDiv(debt, rate) {
			return 0
		}
		return debt - n*rate
	}
	return debt
}

// atMost is a + b, cut to maxDebt either way.
func atMost(a, b int64) int64 {
	b = max(-maxDebt, min(b, maxDebt))
	return max(-maxDebt, min(a+b, maxDebt))
}

// times is cost*scale, cut to maxDebt either way.
func times(cost, scale int64) int64 {
	switch most := maxDebt / scale; {
	case cost > most:
		return maxDebt
	case cost < -most:
		return -maxDebt
	default:
		return cost * scale
	}
}

func ceilDiv(a, b int64) int64 {
	if a <= 0 {
		return 0
	}
	return (a-1)/b + 1
}

func floorDiv(a, b int64) int64 {
	if a < 0 {
		return -((-a-1)/b + 1)
	}
	return a / b
}

// mulDivCeil is a*b/c rounded up, for a, b >= 0 and b <= c.
func mulDivCeil(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	n, rest := bits.Div64(hi, lo, uint64(c))
	if rest > 0 {
		n++
	}
	return int64(n)
}
