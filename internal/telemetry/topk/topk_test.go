package topk

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// TestEstimatesBoundTheExactCount checks the bounds and the order of the items after random additions.
func TestEstimatesBoundTheExactCount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 100
		h, exact, total := New[int](most), map[string]int64{}, int64(0)
		for range rapid.IntRange(0, 50).Draw(t, "runs") {
			key := fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "often"))
			for range rapid.IntRange(0, 200).Draw(t, "times") {
				h.Add([]byte(key))
				exact[key]++
				total++
			}
			for range rapid.IntRange(0, 50).Draw(t, "others") {
				rare := fmt.Sprint("rare", len(exact))
				h.Add([]byte(rare))
				exact[rare]++
				total++
			}
		}
		if len(h.least) > most || len(h.byKey) != len(h.least) {
			t.Fatalf("keeps %d and %d, the bound is %d", len(h.least), len(h.byKey), most)
		}
		for i := range h.least {
			c := h.least[i].item
			if parent := h.least[(i-1)/2].item; c.index != i || len(h.least) == most && parent.Count > c.Count {
				t.Fatalf("%s with %d is at %d, below %d", c.key, c.Count, i, parent.Count)
			}
			if n := exact[c.key]; n > c.Count || n < c.Least() {
				t.Fatalf("%s: between %d and %d, but it is %d", c.key, c.Least(), c.Count, n)
			}
		}
		for key, n := range exact {
			if n > h.Most(key) {
				t.Fatalf("%s: at most %d, but it is %d", key, h.Most(key), n)
			}
			if n > total/most && h.byKey[key] == nil {
				t.Fatalf("%s is missing, %d of %d", key, n, total)
			}
		}
	})
}
