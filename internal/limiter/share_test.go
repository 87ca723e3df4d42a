package limiter

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestAPartIsNeverMoreThanItsShare(t *testing.T) {
	for percent := range int64(101) {
		for _, n := range []int64{0, 1, 3, 99, 100, 1_000_000_007, 1_000_000_000_000, 1 << 53} {
			if got, want := ShareOf(n, float64(percent)/100), n/100*percent+n%100*percent/100; got != want {
				t.Errorf("%d %% of %d: got %d, want %d", percent, n, got, want)
			}
		}
	}
	if got := ShareOf(10, 1.5); got != 10 {
		t.Errorf("one and a half times 10: got %d, want 10", got)
	}
	if got := ShareOf(1<<53, 0.33333333399); got != 3002399748577930 { // 2^53 * 0.333333333
		t.Errorf("got %d; want the tenth and later decimals to be left out", got)
	}
}

func TestPartsOfSpecs(t *testing.T) {
	for _, c := range []struct {
		name                              string
		s                                 algorithms.Spec
		rate                              int64
		capacity, initial, reserved, debt int64 // -1 means none
	}{
		{"a half", algorithms.Spec{Rate: 10, Capacity: number(20), Initial: number(8), MaxReserved: number(4), MaxDebt: number(6)}, 5, 10, 4, 2, 3},
		{"at least 1", algorithms.Spec{Rate: 1, Capacity: number(1), Initial: number(1), MaxReserved: number(1), MaxDebt: number(1)}, 1, 1, 0, 0, 0},
		{"nothing", algorithms.Spec{Rate: 0, Capacity: number(0)}, 0, 0, -1, -1, -1},
		{"only a rate", algorithms.Spec{Rate: 9}, 4, -1, -1, -1, -1},
		{"initial without capacity", algorithms.Spec{Rate: 10, Initial: number(10)}, 5, -1, 5, -1, -1},
		{"initial above the part of the rate", algorithms.Spec{Rate: 10, Initial: number(30)}, 5, -1, 5, -1, -1},
		{"initial above the rate", algorithms.Spec{Rate: 10, Capacity: number(40), Initial: number(30)}, 5, 20, 15, -1, -1},
	} {
		of := func(n *int64) int64 {
			if n == nil {
				return -1
			}
			return *n
		}
		got := SpecShare(c.s, 0.5)
		if got.Rate != c.rate || of(got.Capacity) != c.capacity || of(got.Initial) != c.initial || of(got.MaxReserved) != c.reserved || of(got.MaxDebt) != c.debt {
			t.Errorf("%s: rate %d, capacity %d, initial %d, max_reserved %d, max_debt %d; want %+v", c.name, got.Rate, of(got.Capacity), of(got.Initial), of(got.MaxReserved), of(got.MaxDebt), c)
		}
	}
	if part := SpecShare(algorithms.Spec{Rate: 9, Minimum: &algorithms.Rate{Units: 4}}, 0.5); part.Minimum.Units != 2 {
		t.Errorf("a guaranteed minimum of 4: got %d, want 2", part.Minimum.Units)
	}
}
