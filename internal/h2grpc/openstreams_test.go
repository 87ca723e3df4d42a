package h2grpc

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// Random additions and removals have the same result as with a map, and the table follows the number of streams.
func TestOpenStreamsAreAMap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	open, want := newOpenStreams(), map[uint32]*stream{}
	id, most := uint32(1), 0
	for round := range 20_000 {
		if grows := round%4000 < 2000; grows == (random.IntN(4) > 0) {
			id += 2 << random.IntN(12) // clients may skip numbers
			want[id] = &stream{id: id}
			open.add(want[id])
		} else if len(want) > 0 {
			ids := slices.Collect(maps.Keys(want))
			gone := ids[random.IntN(len(ids))]
			open.remove(want[gone])
			if s := want[gone]; s.open || s.next != nil || open.find(gone) != nil {
				t.Fatalf("stream %d is still there after its removal", gone)
			}
			delete(want, gone)
		}
		most = max(most, len(want))
		if round%100 > 0 {
			continue
		}
		open.shrink()
		if open.count != len(want) || len(open.all()) != len(want) || len(open.slots) > max(fewStreams, 16*len(want)) {
			t.Fatalf("%d streams, %d visited, in %d slots; want %d streams", open.count, len(open.all()), len(open.slots), len(want))
		}
		for id, s := range want {
			if open.find(id) != s || !s.open {
				t.Fatalf("stream %d is not found", id)
			}
		}
	}
	if most < 500 {
		t.Errorf("at most %d streams were open; want enough to let the table grow", most)
	}
}
