//go:build !race

package ratelimit_test

import "testing"

// The race detector drops pooled objects, so this test is skipped under it.
func TestDecisionsDoNotAllocate(t *testing.T) {
	for name, call := range calls(t) {
		if n := testing.AllocsPerRun(1000, call); n >= 1 {
			t.Errorf("%s: %v allocations; want less than 1", name, n)
		}
	}
}
