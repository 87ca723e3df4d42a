package simulate

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// TestHeavyBoundsTheTruth compares with an exact count.
func TestHeavyBoundsTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, exact, total := newHeavy(), map[string]int64{}, int64(0)
		for range rapid.IntRange(0, 50).Draw(t, "runs") {
			key := fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "often"))
			for range rapid.IntRange(0, 200).Draw(t, "times") {
				h.add([]byte(key))
				exact[key]++
				total++
			}
			for range rapid.IntRange(0, 300).Draw(t, "others") {
				rare := fmt.Sprint("rare", len(exact))
				h.add([]byte(rare))
				exact[rare]++
				total++
			}
		}
		if len(h.heap) > maxHeavy || len(h.byKey) != len(h.heap) {
			t.Fatalf("keeps %d and %d, the bound is %d", len(h.heap), len(h.byKey), maxHeavy)
		}
		for _, c := range h.heap {
			if n := exact[c.key]; n > c.count || n < c.count-c.over {
				t.Fatalf("%s: between %d and %d, but it is %d", c.key, c.count-c.over, c.count, n)
			}
		}
		for key, n := range exact {
			if n > total/maxHeavy && h.byKey[key] == nil {
				t.Fatalf("%s is missing, %d of %d", key, n, total)
			}
		}
	})
}
