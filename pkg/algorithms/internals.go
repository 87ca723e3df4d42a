package algorithms

import "github.com/rlsidecar/rlsidecar/internal/scaled"

// Other packages of this module read the numbers of a Limit through package scaled.
func init() {
	scaled.Returned = returned
	scaled.Of = func(limit scaled.Limit) scaled.Numbers {
		l := limit.(*Limit)
		n := scaled.Numbers{Tick: int64(l.tick), Period: l.period, Phase: l.phase, PhaseFromKey: l.phaseFromKey, P1: l.p1, V1: l.v1}
		if l.Kind != FixedWindow {
			n.P, n.Q, n.V = l.p, l.q, l.v
		}
		return n
	}
}
