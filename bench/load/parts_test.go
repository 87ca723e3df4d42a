package load

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestQuantilesAreNear(t *testing.T) {
	var h, other histogram
	dice := rand.New(rand.NewPCG(1, 2))
	var all []time.Duration
	for i := range 10_000 {
		d := time.Duration(dice.Uint64N(1 << (5 + dice.Uint64N(30))))
		all = append(all, d)
		if i%2 == 0 {
			h.add(d)
		} else {
			other.add(d)
		}
	}
	h.merge(&other)
	slices.Sort(all)
	for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 0.999} {
		want, got := all[int(q*10_000)], h.quantile(q)
		if diff := max(want-got, got-want); diff > want/64+1 {
			t.Errorf("quantile %v is %v, want about %v", q, got, want)
		}
	}
	if got := h.quantile(1); got > h.max || h.max != all[len(all)-1] {
		t.Errorf("quantile 1 is %v, max is %v, want %v", got, h.max, all[len(all)-1])
	}
}
