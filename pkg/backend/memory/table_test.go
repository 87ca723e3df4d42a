package memory

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// The hashes collide in the bits that refs contain, and in the first place of the index.
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

func TestATableReusesTheMemoryOfRemovedEntries(t *testing.T) {
	var table table
	for i := range 10 {
		table.insert(uint64(i)<<32, fmt.Sprint(i))
	}
	for i := 10; i < 2000; i++ {
		table.remove(table.find(uint64(i-10)<<32, fmt.Append(nil, i-10)))
		table.insert(uint64(i)<<32, fmt.Sprint(i))
	}
	if table.everUsed != 10 || len(table.index) > 16 || len(table.chunks) != 1 {
		t.Errorf("10 entries at a time used %d entries, %d places and %d chunks; want 10, at most 16 and 1", table.everUsed, len(table.index), len(table.chunks))
	}
}
