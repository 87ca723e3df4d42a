// Package spelling compares words that people write with the words that a program knows.
package spelling

import (
	"fmt"
	"strings"
)

// DidYouMean returns "; did you mean …?" with the most similar item of known, or "" if no item is similar enough.
func DidYouMean(word string, known []string) string {
	const mostWords, longest = 1000, 64 // a longer search would take too much time
	best, least := "", 0
	if len(known) > mostWords || len(word) > longest {
		return ""
	}
	for _, k := range known {
		if len(k) > longest {
			continue
		}
		if d := Distance(strings.ToLower(word), strings.ToLower(k)); d <= max(1, len(k)/3) && (best == "" || d < least) {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// Distance returns the number of edits that turn a into b. An edit inserts, deletes or replaces a byte, or swaps two
// neighbours.
func Distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
