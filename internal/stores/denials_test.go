package stores

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"pgregory.net/rapid"
)

// Denials are added and removed in random order. The field groups has the newest denial of each group, unless that
// denial or one of its buckets was removed later, or the set was full. The memory is bounded.
func TestDenialsAgreeWithASimpleMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 6
		s := newDenials(most)
		wantGroups := map[uint64]*denial{}
		var all []*denial
		key := func() string { return fmt.Sprint("bucket ", rapid.IntRange(0, 4).Draw(t, "bucket")) }
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				s.clear()
				clear(wantGroups)
			case 1, 2:
				name := key()
				s.removeBucket(xxhash.Sum64String(name))
				maps.DeleteFunc(wantGroups, func(_ uint64, d *denial) bool {
					return slices.ContainsFunc(d.charges, func(c backend.Charge) bool { return string(c.Key) == name })
				})
			case 3:
				if len(all) > 0 {
					old := rapid.SampledFrom(all).Draw(t, "old")
					if s.remove(old); wantGroups[old.hash] == old { // only the newest denial of a group can be removed
						delete(wantGroups, old.hash)
					}
				}
			default:
				d := &denial{charges: []backend.Charge{{Key: []byte(key())}, {Key: []byte(key())}}}
				d.hash = groupHash(d.charges)
				if s.add(d); len(s.groups) == 1 { // add may have removed the others, because there was no room
					clear(wantGroups)
				}
				wantGroups[d.hash] = d
				all = append(all, d)
			}
			if !maps.Equal(s.groups, wantGroups) {
				t.Fatalf("got the denials %v, want %v", s.groups, wantGroups)
			}
			listed := 0
			for _, groups := range s.buckets {
				listed += len(groups)
			}
			if len(s.groups) > most || s.listed != listed || listed > 8*most+2 {
				t.Fatalf("%d denials, %d listed, counted as %d; want at most %d denials, and at most %d listed, counted correctly", len(s.groups), listed, s.listed, most, 8*most+2)
			}
		}
	})
}

// Two groups can have the same hash, so a denial compares the keys.
func TestADenialOfAnotherKeyAnswersNothing(t *testing.T) {
	limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: algorithms.Second})
	if err != nil {
		t.Fatal(err)
	}
	charge := func(key string) []backend.Charge {
		return []backend.Charge{{Key: []byte(key), Limit: &limit, Terms: algorithms.Charge{Cost: 1}}}
	}
	now, decisions := time.Now(), make([]backend.Decision, 1)
	denied := []backend.Decision{{Decision: algorithms.Decision{RetryAfter: algorithms.Second}}}
	d := denialOf(charge("a"), denied, now, now, time.Second)
	if !d.answerGroup(charge("a"), decisions, now) || d.answerGroup(charge("b"), decisions, now) {
		t.Error("the denial of a answers b, or does not answer a")
	}
}
