package memory

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// takeUnder charges a unit of a bucket under an ID, which is stored for a minute.
func takeUnder(s *Store, l *algorithms.Limit, id int) backend.Decision {
	d := make([]backend.Decision, 1)
	backend.Take(context.Background(), s, []backend.Charge{{
		Key: []byte("k"), Limit: l, Owner: "a/x", Terms: algorithms.Charge{Cost: 1},
		IdempotencyKey: &backend.IdempotencyKey{ID: [16]byte{byte(id), byte(id >> 8)}, Lifetime: minute},
	}}, d)
	return d[0]
}

func TestRecordsAreBounded(t *testing.T) {
	clock, s := at(10)
	s.SetOwners([]string{"a/x"})
	limit := tokens(t, 100)
	take := func(id int) backend.Decision { return takeUnder(s, limit, id) }
	for id := range 5 { // the half of the bound that all limits share
		if d := take(id); !d.Allowed {
			t.Fatalf("%d: got %+v; want allowed", id, d)
		}
	}
	if d := take(5); !errors.Is(d.Err, backend.ErrFull) {
		t.Errorf("sixth record, want ErrFull: got %+v", d)
	}
	if d := consume(s, "a/x", "other", limit, 1); !d.Allowed {
		t.Errorf("buckets have room of their own: got %+v; want allowed", d)
	}
	if d := take(0); !d.Replayed || d.Remaining != 99 {
		t.Errorf("an earlier record was deleted to make room: got %+v; want replayed and 99 remaining", d)
	}
	clock.Set(storetest.Start + minute - 1)
	if d := take(4); !d.Replayed {
		t.Errorf("within its lifetime: got %+v; want replayed", d)
	}
	clock.Set(storetest.Start + minute)
	for range 2 { // the room of the expired records can be used again
		if d := take(4); !d.Allowed {
			t.Errorf("after its lifetime: got %+v; want allowed", d)
		}
	}
	clock.Set(storetest.Start + 3*minute)
	s.Sweep()
	if got := s.Stats().Keys; got != 0 {
		t.Errorf("%d kept, want none", got)
	}
}

func TestDeniedIDsKeepNoRoom(t *testing.T) {
	_, s := at(20)
	s.SetOwners([]string{"a/x"})
	limit := tokens(t, 5)
	for id := range 5 {
		if d := takeUnder(s, limit, id); !d.Allowed {
			t.Fatalf("%d: got %+v; want allowed", id, d)
		}
	}
	keys := s.Stats().Keys
	for id := 5; id < 1000; id++ {
		if d := takeUnder(s, limit, id); d.Err != nil || d.Allowed {
			t.Fatalf("denied id %d: %+v; want no error and denied", id, d)
		}
	}
	if got := s.Stats().Keys; got != keys {
		t.Errorf("holds %d after 995 denied ids, %d before", got, keys)
	}
}

// The caller may reuse the memory of its decisions while they are stored. The expiry of the first record with
// an ID must not delete the second one.
func TestARecordIsACopyOfTheDecisions(t *testing.T) {
	clock, s := at(100)
	l := tokens(t, 100)
	d := make([]backend.Decision, 1)
	take := func(lifetime algorithms.Micros) backend.Decision {
		d[0] = backend.Decision{}
		backend.Take(context.Background(), s, []backend.Charge{{
			Key: []byte("k"), Limit: l, Owner: "a", Terms: algorithms.Charge{Cost: 1},
			IdempotencyKey: &backend.IdempotencyKey{ID: [16]byte{1}, Lifetime: lifetime},
		}}, d)
		return d[0]
	}
	take(10 * algorithms.Second)
	if got := take(10 * algorithms.Second); !got.Replayed || got.Err != nil || got.Remaining != 99 {
		t.Errorf("the repeated group got %+v; want replayed, no error and 99 remaining", got)
	}
	clock.Set(storetest.Start + 30*algorithms.Second)
	if got := take(10 * minute); !got.Allowed || got.Replayed {
		t.Fatalf("after the lifetime of the first record: %+v; want allowed and not replayed", got)
	}
	clock.Set(storetest.Start + 5*minute)
	s.Sweep()
	if got := take(10 * minute); !got.Replayed {
		t.Errorf("the second record is gone: %+v; want replayed", got)
	}
}

func TestAnExpiredRecordIsReplaced(t *testing.T) {
	clock, s := at(100)
	l := tokens(t, 5000)
	take := func(id byte, of int) (d [2]backend.Decision) {
		charges := make([]backend.Charge, of)
		once := &backend.IdempotencyKey{ID: [16]byte{id}, Digest: [32]byte{byte(of)}, Lifetime: 1000}
		for i := range charges {
			charges[i] = backend.Charge{Key: []byte{'k', byte(i)}, Limit: l, Owner: "a", Terms: algorithms.Charge{Cost: 1}, IdempotencyKey: once}
		}
		backend.Take(context.Background(), s, charges, d[:of])
		return d
	}
	for i := range 1000 {
		clock.Set(storetest.Start + 1000*algorithms.Micros(i))
		of := 1 + i%2
		if d := take(1, of); !d[0].Allowed || d[0].Replayed {
			t.Fatalf("request %d: got %+v; want allowed and not replayed", i, d)
		}
		if d := take(1, of); !d[0].Replayed || (of == 2) != d[1].Replayed {
			t.Fatalf("request %d, repeated: got %+v; want replayed", i, d)
		}
		if keys := 2 + of; i > 0 && s.Stats().Keys != keys {
			t.Fatalf("request %d: %d keys, want 2 buckets and %d decisions", i, s.Stats().Keys, of)
		}
	}
	if used, _, _ := s.recordsInUse(); used != 1 {
		t.Errorf("%d records are used; want 1", used)
	}
	for range 50 { // these groups get the records that a sweep has freed
		for id := range byte(50) {
			take(id, 1+int(id)%2)
		}
		clock.Set(s.clock() + 2*minute)
		s.Sweep()
		if got := s.Stats().Keys; got != 0 {
			t.Fatalf("%d kept after their lifetime, want none", got)
		}
	}
	if used, due, others := s.recordsInUse(); used > 50 || due > 0 || others > 0 {
		t.Errorf("%d records, due in %d minutes, %d with more decisions; want at most 50, none and none", used, due, others)
	}
}

func (s *Store) recordsInUse() (used, due, others int) {
	for i := range s.records {
		r := &s.records[i]
		used, due, others = used+r.everUsed, due+len(r.due), others+len(r.others)
	}
	return used, due, others
}

// A sweep for new room includes the stripe whose lock the request already holds.
func TestNewIDsFindTheRoomOfExpiredRecords(t *testing.T) {
	clock, s := at(2)
	s.SetOwners([]string{"a/x"})
	l := tokens(t, 100)
	take := func(id int) backend.Decision { return takeUnder(s, l, id) }
	for id := range 100 { // some of the records are in the same stripe as the one before
		if d := take(id); !d.Allowed {
			t.Fatalf("id %d: got %+v; want allowed, because the record before has expired", id, d)
		}
		if d := take(100); !errors.Is(d.Err, backend.ErrFull) {
			t.Fatalf("another id beside %d: got %+v; want ErrFull", id, d)
		}
		if full := s.Stats().Full; full != uint64(id)+1 {
			t.Fatalf("%d refusals are counted, want %d", full, id+1)
		}
		clock.Set(s.clock() + 2*minute)
	}
}

// New buckets find the room of buckets that equal new ones, and so must new IDs.
func TestNewIDsFindTheRoomOfBuckets(t *testing.T) {
	clock, s := at(1000)
	l := tokens(t, 1)
	for i := range 1000 {
		consume(s, "a/x", fmt.Sprint(i), l, 1)
	}
	clock.Set(storetest.Start + algorithms.Second)
	for id := range 100 {
		if d := takeUnder(s, tokens(t, 1000), id); !d.Allowed {
			t.Fatalf("id %d: got %+v; want allowed, because the buckets equal new ones", id, d)
		}
	}
}

// Several IDs have the same hash. The index grows with the number of records at a time, not with those that
// it ever had.
func TestTheIndexOfRecordsBehavesLikeAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &records{}
		hash := func(i byte) uint32 { return uint32(i%3)<<30 | uint32(i%7) }
		have := map[byte]recordRef{}
		for _, i := range rapid.SliceOfN(rapid.ByteRange(0, 30), 0, 400).Draw(t, "ids") {
			id := [16]byte{i}
			ref := r.find(hash(i), &id)
			if ref != have[i] {
				t.Fatalf("id %d: found %d, want %d", i, ref, have[i])
			}
			if ref == 0 {
				ref = r.newRecord()
				r.at(ref).id = id
				r.enter(hash(i), ref)
				have[i] = ref
				continue
			}
			r.leave(hash(i), ref)
			r.at(ref).next, r.free = r.free, ref
			delete(have, i)
		}
		for i := range byte(31) {
			if ref := r.find(hash(i), &[16]byte{i}); ref != have[i] {
				t.Fatalf("id %d: found %d, want %d", i, ref, have[i])
			}
		}
		if len(r.index) > 64 || r.count != len(have) || r.everUsed > 31 {
			t.Fatalf("%d records in %d places, %d counted, %d ever used; want at most 64 places and 31 used", len(have), len(r.index), r.count, r.everUsed)
		}
	})
}
