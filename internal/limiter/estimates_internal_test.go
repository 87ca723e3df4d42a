package limiter

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// A listed value has its own estimate only in entries with the key under which it is listed. All other values have one
// estimate together.
func TestAnEstimateIsOfTheKeyThatListsIt(t *testing.T) {
	p := &Policy{Keys: descriptors.Keys{Prefix: "p"}, Extras: &Extras{Settle: &SettleTerms{Learn: &Learn{
		Per: []string{"model"}, Values: map[string]map[string]bool{"model": {"large": true}},
	}}}}
	cell := func(key, value string) uint64 {
		c := &Call{}
		c.AddDescriptor().Entries = []descriptors.Entry{{Key: key, Value: value}}
		return c.cell(p)
	}
	listed, others := cell("model", "large"), cell("model", "unlisted")
	for _, key := range []string{"user", "other"} {
		if got := cell(key, "large"); got == listed || got != others {
			t.Errorf("the value of the key %s: got the cell %d; want %d, that of a value that is not listed", key, got, others)
		}
	}
	if listed == others {
		t.Errorf("a value that is not listed has the cell of the listed one, %d; want another one", listed)
	}
}
