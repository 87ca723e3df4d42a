package memory

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// With -race, this test fails if memory that touch reads without locks is written non-atomically.
func TestTouchWhileBucketsAreAddedAndDeleted(t *testing.T) {
	const keys, each, workers = 4000, 3, 4
	_, s := at(100_000)
	l := tokens(t, each)
	var allowed [keys]atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for range 2 * each * keys / workers / atOnce {
				charges, d := make([]backend.Charge, 2*atOnce), make([]backend.Decision, 2*atOnce)
				var reads [2 * atOnce]int
				for i := range charges {
					reads[i] = random.IntN(keys)
					key := fmt.Append(nil, reads[i])
					if i%4 == 3 { // these buckets are deleted again
						reads[i], key = -1, fmt.Append(nil, "gone", w, i)
					}
					charges[i] = backend.Charge{Key: key, Limit: l, Owner: "a", Terms: algorithms.Charge{Cost: 1}, Group: i}
				}
				backend.Take(t.Context(), s, charges, d)
				for i, n := range reads {
					switch {
					case n < 0:
						if !d[i].Allowed || d[i].Remaining != each-1 {
							t.Errorf("%s: got %+v; want allowed and %v remaining", charges[i].Key, d[i], each-1)
						}
						if err := backend.ResetBucket(t.Context(), s, charges[i]); err != nil {
							t.Error(err)
						}
					case d[i].Allowed:
						allowed[n].Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	for i := range allowed {
		charge := []backend.Charge{{Key: fmt.Append(nil, i), Limit: l, Terms: algorithms.Charge{DryRun: true}}}
		var d [1]backend.Decision
		backend.Take(t.Context(), s, charge, d[:])
		if got := allowed[i].Load() + d[0].Remaining; got != each {
			t.Fatalf("key %d: %d were allowed and %d remain, want %d together", i, allowed[i].Load(), d[0].Remaining, each)
		}
	}
}

func TestEntriesAreAlignedToCacheLines(t *testing.T) {
	if strconv.IntSize < 64 {
		t.Skip("an entry has the size of a cache line only if pointers have 64 bits")
	}
	var table table
	for i := range 3 * chunkSize {
		at := uintptr(unsafe.Pointer(table.insert(uint64(i)<<32, "key")))
		if size := unsafe.Sizeof(entry{}); size != 64 || at%64 != 0 {
			t.Fatalf("entry %d: %d bytes at %#x; want size 64 and at %% 64 0", i, size, at)
		}
	}
}

// touch only saves time, so a fault in it changes no decision. Therefore this test checks the bytes that touch
// reads.
func TestTouchReadsKeysAndPlacesOfRecords(t *testing.T) {
	_, s := at(1000)
	l := tokens(t, 10)
	var charges []backend.Charge
	var want byte
	for i := range byte(atOnce) {
		charges = append(charges, backend.Charge{Key: []byte{1 + i}, Limit: l, Owner: "a", Terms: algorithms.Charge{Cost: 1}, Group: int(i)})
		want += 1 + i
	}
	charges[0].IdempotencyKey = &backend.IdempotencyKey{ID: [16]byte{1}, Lifetime: minute}
	backend.Take(t.Context(), s, charges, make([]backend.Decision, len(charges)))
	want++ // the first record of a stripe has the ref 1
	var hashes [atOnce]uint64
	if read := s.touch(charges, &hashes); read != want {
		t.Errorf("read bytes with the sum %d; want %d, the sum of the keys and 1", read, want)
	}
	for i := range charges {
		if hashes[i] != s.hash(charges[i].Key) {
			t.Errorf("charge %d: hash %x, want %x", i, hashes[i], s.hash(charges[i].Key))
		}
	}
}

// A published view may be older than the index that it shares with the table. Its search finds refs of entries in
// chunks that it does not have.
func TestAnOldViewDoesNotReadNewChunks(t *testing.T) {
	var table table
	for i := range chunkSize {
		table.insert(uint64(i)<<32, "key")
	}
	old := *table.seen.Load()
	if len(old.index) != len(table.index) || len(old.chunks) != 1 {
		t.Errorf("the published view has %d places and %d chunks, want %d and 1", len(old.index), len(old.chunks), len(table.index))
	}
	e := table.insert(chunkSize<<32, "new")
	if got := old.peek(ref(e.hash, chunkSize)); got != nil {
		t.Errorf("got %v, want nil", got)
	}
	now := table.seen.Load()
	if got := now.peek(now.probe(e.hash)); got == nil || got != e.key.Load() {
		t.Errorf("the new view: got %v, want the key of the new entry", got)
	}
	for i := range uint64(8) { // entries with the same first place
		table.insert(700<<32|i<<56, fmt.Sprint(i))
	}
	for i := range uint64(7) {
		now = table.seen.Load()
		found := now.probe(slot(700<<32 | i<<56))
		if e := table.find(700<<32|i<<56, fmt.Append(nil, i)); found == 0 || table.at(found) != e {
			t.Errorf("entry %d of a chain: probe found %d, want that of find", i, found)
		}
	}
}
