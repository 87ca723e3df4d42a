package memory

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// The table must behave like a map, whatever is inserted and removed, and also if hashes collide in the
// bits that refs contain or in the first slot.
func TestTheTableBehavesLikeAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table table
		hash := func(i int) uint64 { return uint64(i%3)<<61 | uint64(i%7)<<32 }
		have := map[string]int{}
		for _, i := range rapid.SliceOfN(rapid.IntRange(0, 60), 0, 400).Draw(t, "keys") {
			key := fmt.Sprint(i)
			e := table.find(hash(i), []byte(key))
			if _, is := have[key]; is != (e != nil) {
				t.Fatalf("%s: found %v, want %v", key, e != nil, is)
			}
			if e == nil {
				e = table.insert(hash(i), key)
				e.value = int64(i)
				have[key] = i
				continue
			}
			if e.value != int64(i) {
				t.Fatalf("%s: holds %d; want value %v", key, e.value, int64(i))
			}
			table.remove(e)
			delete(have, key)
		}
		for key, i := range have {
			if e := table.find(hash(i), []byte(key)); e == nil || e.name() != key || e.value != int64(i) {
				t.Fatalf("%s: got %+v; want an entry with the value %d", key, e, i)
			}
		}
		if table.count != len(have) {
			t.Fatalf("%d entries, want %d", table.count, len(have))
		}
	})
}
