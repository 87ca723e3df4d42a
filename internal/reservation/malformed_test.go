package reservation

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// unsigned returns the text of an id whose signature is zero. Decode reads such ids.
func unsigned(b []byte) string {
	return base64.RawURLEncoding.EncodeToString(append(b[:len(b):len(b)], make([]byte, signatureLen)...))
}

func TestMalformedIDsAreRefused(t *testing.T) {
	k := keysOf("secret")
	id := string(k.Append(nil, named()))
	texts := map[string]string{
		"empty": "", "a letter": "A", "only a signature": unsigned(nil), "not base64": "!", "an id and more": id + "!", "an id and more text": id + "AA!",
		"too long": id + strings.Repeat("A", maxText),
	}
	for name, text := range texts {
		var r limiter.Reserved
		if Decode(text, &r) == nil {
			t.Errorf("%s: decoded as %+v; want an error", name, r)
		}
		if k.Open(text, &r) {
			t.Errorf("%s: opened as %+v; want it refused", name, r)
		}
	}
}

func TestAReservationOfNoUnitsIsValid(t *testing.T) {
	of := named()
	for i := range of.Parts {
		of.Parts[i].Count = 0
	}
	var r limiter.Reserved
	if k := keysOf("secret"); !k.Open(string(k.Append(nil, of)), &r) || len(r.Parts) != 2 || r.Parts[0].Count != 0 {
		t.Errorf("got %+v; want two parts of 0 units", r)
	}
}

func TestTheLongestID(t *testing.T) {
	k, r := keysOf("secret"), named()
	sized := func(n int) string {
		r.Parts[0].Values = []string{strings.Repeat("k", n)}
		return string(k.Append(nil, r))
	}
	n := base64.RawURLEncoding.DecodedLen(maxText-len(sized(1<<10))) + 1<<10
	if got := len(sized(n)); got != maxText {
		t.Fatalf("the id has %d bytes; want %d", got, maxText)
	}
	var got limiter.Reserved
	if !k.Open(sized(n), &got) || len(got.Parts[0].Values[0]) != n {
		t.Errorf("the longest id: got %+v; want it opened, with a value of %d bytes", got, n)
	}
	if id := sized(n + 1); id != "" {
		t.Errorf("an id of %d bytes was made; want none", len(id))
	}
}
