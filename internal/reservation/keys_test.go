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
	"github.com/rlsidecar/rlsidecar/internal/scaled"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func keysOf(secrets ...string) *Keys { return NewKeys(func() []string { return secrets }) }

// largest returns the reservation of a proxy's request with the longest id.
func largest() *limiter.Reserved {
	r := &limiter.Reserved{Domain: math.MaxUint64}
	for n := range limiter.MaxReserved {
		r.Parts = append(r.Parts, limiter.ReservedPart{
			Number: n, Limit: math.MaxUint64, Key: bytes.Repeat([]byte{0xff}, 129), Hash: math.MaxUint64, Slot: math.MaxUint64, Cell: math.MaxUint64,
			Count: math.MaxInt64, Times: math.MaxInt64, At: math.MaxInt64,
			Inflow: scaled.Inflow{Units: math.MaxInt64, Span: math.MaxInt64},
		})
	}
	return r
}

// named returns an application's reservation of two limits. One key is not UTF-8.
func named() *limiter.Reserved {
	part := limiter.ReservedPart{
		Number: 3, Limit: 9, Count: 1 << 52, Times: 1, At: 5, Inflow: scaled.Inflow{Units: 10, Span: 60_000_000},
		ByName: limiter.ByName{Name: "tokens", Values: []string{"bob", "\xff\x00", ""}, Config: `{"rate":1}`, Wait: 30},
	}
	other := part
	other.Number, other.ByName = 0, limiter.ByName{Name: "calls"}
	return &limiter.Reserved{ID: [16]byte{7}, Domain: 1, Parts: []limiter.ReservedPart{part, other}}
}

func TestAnIDContainsAllThatWasReserved(t *testing.T) {
	small := &limiter.Reserved{Domain: 1, Parts: []limiter.ReservedPart{{Limit: 2, Key: []byte("v\x03bob"), Count: 100, Times: 1, At: 5}}}
	slots := &limiter.Reserved{ID: [16]byte{9}, Domain: 1, Parts: append([]limiter.ReservedPart(nil), small.Parts...)}
	for n := range limiter.MaxReserved - 1 { // as long as config allows
		slots.Parts = append(slots.Parts, limiter.ReservedPart{
			Number: n, Limit: math.MaxUint64, Key: bytes.Repeat([]byte{0xff}, limiter.MaxSlotPrefix+130), Slot: math.MaxUint64, Count: algorithms.MaxSlots,
			TTL: algorithms.MaxSlotTTL, Origin: math.MaxUint64,
		})
	}
	for _, want := range []*limiter.Reserved{small, largest(), named(), slots} {
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
			t.Errorf("the id has %d bytes; the maximum is %d", len(id), limiter.MaxID)
		}
	}
}

// An id that an older process made is settled by a newer one, because the form of ids does not change.
func TestIDsOfThisFormStayValid(t *testing.T) {
	const id = "AwEAAAAAAAAAAAAAAAAAAAIAAAAAAAAAAQIAAAAAAAAAAgUAAAAAAAAACwAAAAAAAAANZAIFCjwFdgNib2IAAAAAAAAACQoAAAAAAAAADICAgICAgIAIAQUKgI7OHAMeBnRva2Vucwp7InJhdGUiOjF9AwNib2IC_wAAuDeGh05Kx16i31raD7f_yQ"
	r := limiter.Reserved{Parts: make([]limiter.ReservedPart, 5)} // left over from another request
	if !keysOf("other", "secret").Open(id, &r) || !reflect.DeepEqual(r, *fixed()) {
		t.Errorf("got %+v; want the reservation that was encoded", r)
	}
	if got := string(keysOf("secret").Append(nil, fixed())); got != id {
		t.Errorf("made %s; want %s", got, id)
	}
}

func fixed() *limiter.Reserved {
	byProxy := limiter.ReservedPart{
		Limit: 2, Key: []byte("v\x03bob"), Slot: 11, Cell: 13, Count: 100, Times: 2, At: 5, Inflow: scaled.Inflow{Units: 10, Span: 60},
	}
	byName := named().Parts[0]
	byName.Hash = 12
	return &limiter.Reserved{ID: [16]byte{1, 15: 2}, Domain: 1, Parts: []limiter.ReservedPart{byProxy, byName}}
}

// The function that returns the list of secrets may overwrite the list later.
func TestKeysFollowTheirSecrets(t *testing.T) {
	secrets := []string{"first"}
	k := NewKeys(func() []string { return secrets })
	var r limiter.Reserved
	made := func() string { return string(k.Append(nil, largest())) }
	signedBy := func(id, secret string) bool { return keysOf(secret).Open(id, &r) }
	old := made()
	kept := k.current.Load()
	if made(); kept == nil || k.current.Load() != kept {
		t.Error("the keys are derived again for each id")
	}
	for _, step := range []struct {
		secrets    []string
		signs      string
		acceptsOld bool
	}{
		{[]string{"second", "first"}, "second", true},
		{[]string{"third", "second", "first"}, "third", true},
		{[]string{"third", "second"}, "third", false},
		{[]string{"first"}, "first", true},
	} {
		secrets = step.secrets
		if id := made(); !signedBy(id, step.signs) || !k.Open(id, &r) || k.Open(old, &r) != step.acceptsOld {
			t.Errorf("%q: signed by %s %t, the old id is accepted %t; want signed, and accepted %t", secrets, step.signs, signedBy(id, step.signs), k.Open(old, &r), step.acceptsOld)
		}
	}
	if secrets[0] = "fourth"; !signedBy(made(), "fourth") || k.Open(old, &r) {
		t.Error("a secret that was overwritten is still used")
	}
	if secrets = nil; string(k.Append([]byte("x"), largest())) != "x" || k.Open(old, &r) {
		t.Error("without a secret an id is made or accepted; want neither")
	}
}

// An id with a valid signature may have impossible content, because another version may have made it.
func TestSignedIDsWithImpossibleContentsAreRefused(t *testing.T) {
	k := keysOf("secret")
	signed := func(b []byte) string { return base64.RawURLEncoding.EncodeToString(k.ring().sign(b, 0, b)) }
	var r limiter.Reserved
	if !k.Open(signed(appendReserved(nil, named())), &r) {
		t.Fatal("a valid id is refused")
	}
	for name, change := range map[string]func(r *limiter.Reserved){
		"a negative count":  func(r *limiter.Reserved) { r.Parts[1].Count = -1 },
		"no times":          func(r *limiter.Reserved) { r.Parts[1].Times = 0 },
		"negative times":    func(r *limiter.Reserved) { r.Parts[1].Times = -1 },
		"a negative number": func(r *limiter.Reserved) { r.Parts[1].Number = -1 },
		"a negative wait":   func(r *limiter.Reserved) { r.Parts[0].Wait = -1 },
		"no parts":          func(r *limiter.Reserved) { r.Parts = nil },
		"too long":          func(r *limiter.Reserved) { r.Parts[0].Name = strings.Repeat("n", maxText) },
	} {
		impossible := named()
		change(impossible)
		if id := signed(appendReserved(nil, impossible)); k.Open(id, &r) {
			t.Errorf("%s: accepted", name)
		}
	}
	for _, version := range []byte{0, form - 1, form + 1, 255} {
		b := appendReserved(nil, named())
		if b[0] = version; k.Open(signed(b), &r) {
			t.Errorf("version %d: accepted", version)
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
		t.Errorf("10 requests have %d ids; want 10", len(ids))
	}
	if made(keysOf("secret")) == made(keysOf("secret")) {
		t.Error("requests of two processes have one id")
	}
	if k := keysOf("secret"); string(k.Append(nil, named())) != string(k.Append(nil, named())) {
		t.Error("an ID that is set is replaced")
	}
}

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
		for last := range 128 { // also a character that differs only in unused bits
			if changed := string(append(bytes.Clone(id[:len(id)-1]), byte(last))); changed != string(id) && k.Open(changed, &r) {
				t.Errorf("another last character, %q: accepted", rune(last))
			}
		}
		for b, i := appendReserved(nil, of), 1; i < len(b); i++ { // Decode reads unsigned content
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

// No content of an id may cause a panic, and Decode reads content without a valid signature. A text that announces
// a huge number of values must be refused at once.
func FuzzOpen(f *testing.F) {
	f.Add(appendReserved(nil, largest()))
	f.Add(appendReserved(nil, named()))
	f.Add([]byte{form})
	f.Add(binary.AppendUvarint(appendReserved(nil, named())[:40], math.MaxUint64))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r limiter.Reserved
		id := base64.RawURLEncoding.EncodeToString(append(b, make([]byte, signatureLen)...))
		if Decode(id, &r) == nil && len(r.Parts) == 0 {
			t.Error("accepted without a part")
		}
	})
}

// Two processes that keep buckets in memory have the same secrets, and do not know what the other one settled.
func TestKeysOfAStoreAcceptOnlyItsIDs(t *testing.T) {
	var r limiter.Reserved
	shared, one, other := keysOf("s"), keysOf("s").OfStore("one"), keysOf("s").OfStore("other")
	id := string(one.Append(nil, largest()))
	for name, k := range map[string]*Keys{"another store": other, "a shared store": shared} {
		if k.Open(id, &r) || one.Open(string(k.Append(nil, largest())), &r) {
			t.Errorf("%s accepts an id of this store, or this store accepts one of it", name)
		}
	}
	if !one.Open(id, &r) {
		t.Error("the store does not accept its own id")
	}
}
