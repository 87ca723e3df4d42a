package topk

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestEstimatesBoundTheExactCount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 100
		h, exact, total := New[int](most), map[string]int64{}, int64(0)
		for range rapid.IntRange(0, 50).Draw(t, "runs") {
			key := fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "often"))
			for range rapid.IntRange(0, 200).Draw(t, "times") {
				h.Add([]byte(key), 1)
				exact[key]++
				total++
			}
			for range rapid.IntRange(0, 50).Draw(t, "others") {
				rare := fmt.Sprint("rare", len(exact))
				h.Add([]byte(rare), 1)
				exact[rare]++
				total++
			}
		}
		if len(h.least) > most || len(h.byKey) != len(h.least) {
			t.Fatalf("keeps %d and %d, the bound is %d", len(h.least), len(h.byKey), most)
		}
		for i := range h.least {
			c := h.least[i].item
			if parent := h.least[(i-1)/2].item; c.heapIndex != i || len(h.least) == most && parent.Count > c.Count {
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

func TestTopIsSortedAndBounded(t *testing.T) {
	h := New[int](3)
	for key, n := range map[string]int64{"x": 5, "b": 2, "a": 2} {
		if _, added := h.Add([]byte(key), n); !added {
			t.Errorf("%s is not new; want new", key)
		}
	}
	for n, want := range map[int]string{0: "", 1: "x", 2: "x a", 3: "x a b", 9: "x a b"} {
		var keys []string
		for _, c := range h.Top(n) {
			keys = append(keys, c.Key())
		}
		if got := strings.Join(keys, " "); got != want {
			t.Errorf("the first %d: got %q, want %q", n, got, want)
		}
	}
	c, added := h.Add([]byte("c"), 9) // replaces a or b, and inherits the count 2
	if !added || c.Count != 11 || c.Least() != 9 || h.Top(1)[0] != c {
		t.Errorf("got %+v, new: %t; want a new item, with between 9 and 11 occurrences, at the top", c, added)
	}
	full := New[int](7)
	for n := int64(7); n > 0; n-- {
		full.Add([]byte{byte(n)}, n)
	}
	if c, _ := full.Add([]byte("new"), 1); c.Over != 1 {
		t.Errorf("a new item inherits the count %d; want 1, the lowest", c.Over)
	}
}
