package reservation

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// example has a key that is not UTF-8.
func example() *Reservation {
	return &Reservation{
		Reservation: limiter.Reservation{
			ID: "0123456789abcdef", Domain: "ai", Name: "tokens", Key: []string{"bob", "\xff\x00", ""},
			Kind: algorithms.TokenBucket, Shards: 4, Count: 1 << 52, At: 1_767_225_600 * algorithms.Second,
			Inflow: algorithms.Inflow{Units: 10, Span: 60_000_000},
		},
		Until: 1_767_225_630 * algorithms.Second, Config: `{"rate":1}`,
	}
}

func TestATextContainsAllOfAReservation(t *testing.T) {
	text := Sign("secret", example())
	for name, open := range map[string]func() (Reservation, error){
		"Open":   func() (Reservation, error) { return Open("secret", text) },
		"Decode": func() (Reservation, error) { return Decode(text) },
	} {
		if r, err := open(); err != nil || !reflect.DeepEqual(&r, example()) {
			t.Errorf("%s: %+v %v", name, r, err)
		}
	}
}

func TestAnotherSecretIsRefused(t *testing.T) {
	text := Sign("secret", example())
	for _, secret := range []string{"", "Secret", "secret2"} {
		if _, err := Open(secret, text); !errors.Is(err, ErrForged) {
			t.Errorf("secret %q: %v", secret, err)
		}
	}
}

// A text of which any character was changed, or that was cut, is refused.
func TestAChangedTextIsRefused(t *testing.T) {
	text := Sign("secret", example())
	for i := range text {
		for _, changed := range []string{text[:i], text[:i] + "A" + text[i+1:], text[:i] + "_" + text[i:]} {
			if changed == text {
				continue
			}
			if _, err := Open("secret", changed); !errors.Is(err, ErrForged) {
				t.Fatalf("%d: %q: %v", i, changed, err)
			}
		}
	}
	if _, err := Open("secret", strings.Repeat("A", 100)); !errors.Is(err, ErrForged) {
		t.Error(err)
	}
}

// Without a token every client can sign. A text that announces a huge number of values is refused at once.
func TestAHugeNumberOfValuesCostsNothing(t *testing.T) {
	b := binary.AppendUvarint([]byte{form, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 1<<62)
	text := base64.RawURLEncoding.EncodeToString(append(b, signature("", b)...))
	if _, err := Open("", text); !errors.Is(err, ErrForged) {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Sign("secret", example()))
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Decode(text)
		if err != nil {
			return
		}
		again, err := Decode(Sign("", &r))
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("%+v became %+v, %v", r, again, err)
		}
	})
}
