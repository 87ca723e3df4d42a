package memory

import (
	"fmt"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Callers choose the names of limits that come with requests, so the number of stored names must be
// bounded.
func TestOwnersWithoutBucketsAreDeleted(t *testing.T) {
	limit := limittest.Compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: algorithms.Day})
	for _, configured := range [][]string{nil, {"configured"}} {
		const most = 100
		s := New(Config{MaxKeys: most})
		if configured != nil {
			s.SetOwners(configured)
		}
		charge := backend.Charge{Limit: limit, Terms: algorithms.Charge{Cost: 1}}
		for i := range 50 * most { // after at most 200 requests the store is full
			charge.Key, charge.Owner = fmt.Append(nil, i), fmt.Sprint("limit ", i)
			backend.Take(t.Context(), s, []backend.Charge{charge}, make([]backend.Decision, 1))
			if i%2 == 0 {
				if err := backend.ResetBucket(t.Context(), s, charge); err != nil {
					t.Fatal(err)
				}
			}
		}
		if n := len(s.room.held); n > most+2 {
			t.Errorf("configured %v: %d owners have a number; want at most %d, the room for buckets and two more", configured, n, most+2)
		}
		if n := len(s.room.names) + len(s.room.free) + 1; n != len(s.room.held) {
			t.Errorf("configured %v: %d owners are in use or free; want all %d", configured, n, len(s.room.held))
		}
	}
}

func TestOwnersOfAnOldConfigurationAreDeletedOnceTheyHaveNoBuckets(t *testing.T) {
	r := newRoom(10)
	r.setOwners([]string{"a", "b"})
	if !r.takeFor("a", 1) {
		t.Fatal("no room, although the store is not full")
	}
	r.setOwners([]string{"c"})
	if _, ok := r.names["b"]; ok || len(r.names) != 2 {
		t.Errorf("b holds nothing, a holds 1, c is new: got the owners %v; want a and c", r.names)
	}
	r.give(r.owner("a"), 1)
	if len(r.names) != 1 {
		t.Errorf("got the owners %v; want only c", r.names)
	}
}
