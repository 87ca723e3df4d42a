package reservation

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func keysOf(secrets ...string) *Keys { return NewKeys(func() []string { return secrets }, nil) }

// largest is what the request of a proxy reserves with the longest id.
func largest() *limiter.Reserved {
	r := &limiter.Reserved{Domain: math.MaxUint64}
	for n := range limiter.MaxReserved {
		r.Parts = append(r.Parts, limiter.ReservedPart{
			Number: n, Limit: math.MaxUint64, Key: bytes.Repeat([]byte{0xff}, 129), Hash: math.MaxUint64, Slot: math.MaxUint64, Cell: math.MaxUint64,
			Count: math.MaxInt64, Times: math.MaxInt64, At: math.MaxInt64,
			Inflow: algorithms.Inflow{Units: math.MaxInt64, Span: math.MaxInt64},
		})
	}
	return r
}

// named is what an application reserves of two limits. A key is not UTF-8.
func named() *limiter.Reserved {
	part := limiter.ReservedPart{
		Number: 3, Limit: 9, Count: 1 << 52, Times: 1, At: 5, Inflow: algorithms.Inflow{Units: 10, Span: 60_000_000},
		ByName: limiter.ByName{Name: "tokens", Values: []string{"bob", "\xff\x00", ""}, Config: `{"rate":1}`, Wait: 30},
	}
	other := part
	other.Number, other.ByName = 0, limiter.ByName{Name: "calls"}
	return &limiter.Reserved{ID: [16]byte{7}, Domain: 1, Parts: []limiter.ReservedPart{part, other}}
}

func TestAnIDContainsAllThatWasReserved(t *testing.T) {
	small := &limiter.Reserved{Domain: 1, Parts: []limiter.ReservedPart{{Limit: 2, Key: []byte("v\x03bob"), Count: 100, Times: 1, At: 5}}}
	for _, want := range []*limiter.Reserved{small, largest(), named()} {
		k := keysOf("secret")
		id := string(k.Append([]byte("before"), want))[len("before"):]
		var got, unverified limiter.Reserved
		if !k.Open(id, &got) || !reflect.DeepEqual(&got, want) {
			t.Errorf("%+v\nwant %+v", got, want)
		}
		if err := Decode(id, &unverified); err != nil || !reflect.DeepEqual(&unverified, want) {
			t.Errorf("without the signature: %+v %v\nwant %+v", unverified, err, want)
		}
		if len(id) > limiter.MaxID {
			t.Errorf("the id has %d bytes, the most is %d", len(id), limiter.MaxID)
		}
	}
}

func TestIDsDiffer(t *testing.T) {
	made := func(k *Keys) string { return string(k.Append(nil, largest())) }
	k, ids := keysOf("secret"), map[string]bool{}
	for range 10 {
		ids[made(k)] = true
	}
	if len(ids) != 10 {
		t.Errorf("10 requests have %d ids", len(ids))
	}
	if made(keysOf("secret")) == made(keysOf("secret")) {
		t.Error("requests of two processes have one id")
	}
	if k := keysOf("secret"); string(k.Append(nil, named())) != string(k.Append(nil, named())) {
		t.Error("an ID that is set is replaced")
	}
}

// A body that settles has at most 64 KiB.
func TestAnIDThatWouldBeTooLongIsNotMade(t *testing.T) {
	r := named()
	for n, made := range map[int]bool{MaxKey: true, 2 * MaxKey: true, 3 * MaxKey: false} {
		r.Parts[0].Values = []string{strings.Repeat("k", n)}
		if id := keysOf("secret").Append(nil, r); (len(id) > 0) != made || len(id) > maxText {
			t.Errorf("a key of %d bytes: the id has %d", n, len(id))
		}
	}
}

// An id of which any character was changed, or that was cut, is refused. So is one that another secret signed.
func TestChangedIDsAreRefused(t *testing.T) {
	for _, of := range []*limiter.Reserved{largest(), named()} {
		k := keysOf("secret")
		id := k.Append(nil, of)
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
		for b, i := appendReserved(nil, of), 1; i < len(b); i++ { // Decode reads what nobody has signed
			cut := append(bytes.Clone(b[:i]), make([]byte, signatureLen)...)
			if Decode(base64.RawURLEncoding.EncodeToString(cut), &r) == nil {
				t.Fatalf("cut at %d: decoded", i)
			}
		}
		for _, secret := range []string{"", "Secret", "secret2"} {
			if keysOf(secret).Open(string(id), &r) {
				t.Errorf("secret %q: accepted", secret)
			}
		}
	}
}

// The ids are those that the version before made of one limit: with a limit that came with the request, and without.
func TestIDsOfTheOldFormAreAccepted(t *testing.T) {
	const (
		inline = "ARAwMTIzNDU2Nzg5YWJjZGVmgICBsYTpkQOAh6i_hOmRAwEEgICAgICAgAgCYWkGdG9rZW5zCnsicmF0ZSI6MX0DA2JvYgL_AAAKgI7OHAVayntGP9FZsTf-9-6Wnog"
		plain  = "ARAwMTIzNDU2Nzg5YWJjZGVmgICBsYTpkQOAh6i_hOmRAwEAgICAgICAgAgCYWkGdG9rZW5zAAMDYm9iAv8AAAqAjs4chJ9YrUTMzOmdxS3LWsAuWw"
	)
	old := NewKeys(func() []string { return []string{"new"} }, func() []string { return []string{"other", "secret"} })
	var r limiter.Reserved
	for id, config := range map[string]string{inline: `{"rate":1}`, plain: ""} {
		if !old.Open(id, &r) || Decode(id, &r) != nil {
			t.Fatal("refused")
		}
		p := r.Parts[0]
		p.Limit = 0
		want := limiter.ReservedPart{
			Number: -1, Count: 1 << 52, Times: 1, At: 1_767_225_600 * algorithms.Second, Inflow: algorithms.Inflow{Units: 10, Span: 60_000_000},
			ByName: limiter.ByName{Name: "tokens", Values: []string{"bob", "\xff\x00", ""}, Config: config, Wait: 30 * algorithms.Second},
		}
		if string(r.ID[:]) != "0123456789abcdef" || len(r.Parts) != 1 || !reflect.DeepEqual(p, want) {
			t.Errorf("%+v", r)
		}
		for i := range id {
			if old.Open(id[:i]+"A"+id[i+1:], &r) && id[i] != 'A' || old.Open(id[:i], &r) {
				t.Fatalf("changed or cut at %d: accepted", i)
			}
		}
		if keysOf("secret").Open(id, &r) {
			t.Error("accepted by keys that do not accept the old form")
		}
	}
}

// What is signed must not crash either: an older version may have made it. Decode reads what nobody has signed: a text
// that announces a huge number of values is refused at once.
func FuzzOpen(f *testing.F) {
	f.Add(appendReserved(nil, largest()))
	f.Add(appendReserved(nil, named()))
	f.Add([]byte{form})
	f.Add(binary.AppendUvarint([]byte{oldForm, 0, 0, 0, 0, 0, 0, 0, 0, 0}, math.MaxUint64))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r limiter.Reserved
		id := base64.RawURLEncoding.EncodeToString(append(b, make([]byte, signatureLen)...))
		if Decode(id, &r) == nil && len(r.Parts) == 0 {
			t.Error("accepted without a part")
		}
	})
}
