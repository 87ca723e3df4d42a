package limiter

import (
	"fmt"
	"testing"
)

// Each part of each reservation is settled once, so each needs an IdempotencyID of its own. Reservations of two
// domains may have one ID.
func TestEachPartHasItsOwnSettlement(t *testing.T) {
	seen := map[[16]byte]string{}
	for _, domain := range []string{"a", "b"} {
		for _, id := range [][16]byte{{}, {1}, {15: 1}, {7: 1, 15: 1}} {
			for number := range 100 {
				c := &Call{Verdict: Verdict{Domain: &Domain{Name: domain}}}
				is := fmt.Sprint(domain, id, number)
				of := c.settlementID(&id, &ReservedPart{Number: number}, &Result{})
				if was := seen[of]; was != "" {
					t.Fatalf("%s and %s have one IdempotencyID", was, is)
				}
				seen[of] = is
			}
		}
	}
}
