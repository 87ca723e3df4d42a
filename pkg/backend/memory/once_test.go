package memory

import (
	"context"
	"errors"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// Records expire, and their number is bounded by the room that they share with buckets.
func TestRecordsAreBounded(t *testing.T) {
	clock, s := at(10)
	s.SetOwners([]string{"a/x"})
	limit := tokens(t, 100)
	take := func(id byte) backend.Decision {
		d := make([]backend.Decision, 1)
		backend.Take(context.Background(), s, []backend.Charge{{
			Key: []byte("k"), Limit: limit, Owner: "a/x", Terms: algorithms.Charge{Cost: 1},
			IdempotencyKey: &backend.IdempotencyKey{ID: [16]byte{id}, Lifetime: minute},
		}}, d)
		return d[0]
	}
	for id := range byte(5) { // the half of the bound that all limits share
		if d := take(id); !d.Allowed {
			t.Fatalf("%d: got %+v; want allowed", id, d)
		}
	}
	if d := take(5); !errors.Is(d.Err, backend.ErrFull) {
		t.Errorf("sixth record, want ErrFull: got %+v", d)
	}
	if d := ask(s, "a/x", "other", limit, 1); !d.Allowed {
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

// A denied group is not stored under its id, and uses no room.
func TestDeniedIDsKeepNoRoom(t *testing.T) {
	_, s := at(20)
	s.SetOwners([]string{"a/x"})
	limit := tokens(t, 5)
	take := func(id int) backend.Decision {
		d := make([]backend.Decision, 1)
		backend.Take(context.Background(), s, []backend.Charge{{
			Key: []byte("k"), Limit: limit, Owner: "a/x", Terms: algorithms.Charge{Cost: 1},
			IdempotencyKey: &backend.IdempotencyKey{ID: [16]byte{byte(id), byte(id >> 8)}, Lifetime: minute},
		}}, d)
		return d[0]
	}
	for id := range 5 {
		if d := take(id); !d.Allowed {
			t.Fatalf("%d: got %+v; want allowed", id, d)
		}
	}
	held := s.Stats().Keys
	for id := 5; id < 1000; id++ {
		if d := take(id); d.Err != nil || d.Allowed {
			t.Fatalf("denied id %d: %+v; want no error and denied", id, d)
		}
	}
	if got := s.Stats().Keys; got != held {
		t.Errorf("holds %d after 995 denied ids, %d before", got, held)
	}
}

// The caller may reuse the memory of its decisions while they are stored. An ID can be used again after its
// lifetime. The expiry of its first record must not delete the second one.
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
