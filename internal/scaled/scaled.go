// Package scaled has the numbers with which a compiled limit computes. The packages of this module need
// them, for example to pass a limit to a script. They are not part of the exported API of package
// algorithms.
package scaled

import "math/bits"

// Numbers are the numbers of one limit.
type Numbers struct {
	Tick         int64 // the unit of time in us: 1, or 1,000 if the numbers would otherwise be too large
	Period       int64 // ticks
	Phase        int64 // fixed window: ticks, 0 <= Phase < Period
	PhaseFromKey bool  // fixed window: the phase is the hash of the key modulo Period

	// Buckets that refill count in 1/Q unit. P such parts flow in with each tick, up to V. Q is 0 for limits with
	// windows.
	P, Q, V int64
	// P1 and V1 belong to the guaranteed part of a guaranteed bucket. P and V then belong to the bank, the
	// part that supplies bursts.
	P1, V1 int64
}

// PhaseOf returns the offset, in ticks within a period, at which the windows of the key with this hash start.
func (n *Numbers) PhaseOf(hash uint64) int64 {
	if n.PhaseFromKey {
		return int64(hash % uint64(n.Period))
	}
	return n.Phase
}

// Inflow is the speed at which a bucket refills: Units units flow in while Span microseconds pass. A limit with
// windows has the zero Inflow.
type Inflow struct{ Units, Span int64 }

// Inflow returns the speed at which a bucket refills. For a guaranteed bucket it is the sum of both parts.
func (n *Numbers) Inflow() Inflow {
	if n.Q == 0 {
		return Inflow{}
	}
	return Inflow{Units: n.P + n.P1, Span: n.Q * n.Tick}
}

// Ticks returns the number of whole ticks in t microseconds.
func (n *Numbers) Ticks(t int64) int64 { return t / max(1, n.Tick) }

// Returned returns the amount that an undo refunds: max(0, given-p*ticks), or 0 if ticks is negative. given is the
// amount of the charge and p the inflow of a tick, both in 1/Q unit like the result. ticks is the time since the
// charge.
func Returned(given, p, ticks int64) int64 {
	if ticks < 0 { // the clock stepped back by more than a minute, so the inflow since the charge is unknown
		return 0
	}
	if hi, lo := bits.Mul64(uint64(ticks), uint64(p)); hi == 0 && lo < uint64(given) {
		return given - int64(lo)
	}
	return 0
}
