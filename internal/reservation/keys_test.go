package reservation

import (
	"bytes"
	"math"
	"reflect"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func keysOf(secrets ...string) *Keys { return NewKeys(func() []string { return secrets }) }

// largest is what a request reserves with the longest id.
func largest() *limiter.Reserved {
	r := &limiter.Reserved{Domain: math.MaxUint64}
	for range limiter.MaxReserved {
		r.Parts = append(r.Parts, limiter.ReservedPart{
			Limit: math.MaxUint64, Key: bytes.Repeat([]byte{0xff}, 129), Hash: math.MaxUint64, Slot: math.MaxUint64, Cell: math.MaxUint64,
			Count: math.MaxInt64, Times: math.MaxInt64, At: math.MaxInt64,
			Inflow: algorithms.Inflow{Units: math.MaxInt64, Span: math.MaxInt64},
		})
	}
	return r
}

func TestAnIDContainsAllThatWasReserved(t *testing.T) {
	small := &limiter.Reserved{Domain: 1, Parts: []limiter.ReservedPart{{Limit: 2, Key: []byte("v\x03bob"), Count: 100, Times: 1, At: 5}}}
	for _, want := range []*limiter.Reserved{small, largest()} {
		k := keysOf("secret")
		id := string(k.Append([]byte("before"), want))
		var got limiter.Reserved
		if !k.Open(id[len("before"):], &got) || !reflect.DeepEqual(&got, want) {
			t.Errorf("%+v\nwant %+v", got, want)
		}
		if len(id) > MaxID {
			t.Errorf("the id has %d bytes, the most is %d", len(id), MaxID)
		}
	}
}

func TestIDsDiffer(t *testing.T) {
	k, r := keysOf("secret"), largest()
	if one, two := string(k.Append(nil, r)), string(k.Append(nil, r)); one == two {
		t.Error("two starts have one id")
	}
	if one, two := string(keysOf("secret").Append(nil, r)), string(keysOf("secret").Append(nil, r)); one == two {
		t.Error("starts of two processes have one id")
	}
}

// An id of which any character was changed, or that was cut, is refused.
func TestChangedIDsAreRefused(t *testing.T) {
	k := keysOf("secret")
	id := k.Append(nil, largest())
	var r limiter.Reserved
	for i := range id {
		changed := bytes.Clone(id)
		if changed[i] = 'A'; id[i] == 'A' {
			changed[i] = 'B'
		}
		if k.Open(string(changed), &r) {
			t.Fatalf("changed at %d: accepted", i)
		}
		if k.Open(string(id[:i]), &r) {
			t.Fatalf("cut at %d: accepted", i)
		}
	}
}

// A text for one bucket is no id for several, and the other way round, though one secret signs both.
func TestTheFormsAreNotMistakenForEachOther(t *testing.T) {
	k := keysOf("secret")
	var r limiter.Reserved
	if k.Open(Sign("secret", example()), &r) {
		t.Error("a text of one bucket is accepted as an id")
	}
	if _, err := Open("secret", string(k.Append(nil, largest()))); err == nil {
		t.Error("an id is accepted as a text of one bucket")
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(appendGroup(nil, largest()))
	f.Add([]byte{formGroup})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || b[0] != formGroup {
			return
		}
		var r limiter.Reserved // what is signed must not crash either: an older version may have made it
		if decodeGroup(b, &r) && len(r.Parts) == 0 {
			t.Error("accepted without a part")
		}
	})
}
