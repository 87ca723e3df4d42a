package redis

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func TestResetsAndChargesOfABatchKeepTheirOrder(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"server", "cluster"} {
		s := open(t, on(t, name))
		var charges []backend.Charge
		for i, cost := range []int64{3, 0, 2, 2, 0, 0, 1} { // 0 means a reset
			charges = append(charges, backend.Charge{Key: []byte("k"), Limit: limitOf(3), Group: i, Terms: algorithms.Charge{Cost: cost}, Reset: cost == 0})
		}
		want := []int64{0, 0, 1, -1, 0, 0, 2} // the units left; -1 means denied
		for i, d := range takeAll(s, charges) {
			if d.Err != nil || d.Allowed != (want[i] >= 0) || d.Allowed && d.Remaining != want[i] {
				t.Errorf("%s, charge %d: got %+v; want %d remaining (-1: denied)", name, i, d, want[i])
			}
		}
	}
}
