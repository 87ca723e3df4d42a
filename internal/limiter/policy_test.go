package limiter

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

func TestLimitsThatCountByTheSecond(t *testing.T) {
	start := algorithms.Micros(0)
	for _, c := range []struct {
		s    algorithms.Spec
		want bool
	}{
		{algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: algorithms.Second, Start: &start}, true},
		{algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: algorithms.Second}, false},
		{algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: 2 * algorithms.Second, Start: &start}, false},
		{algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: algorithms.Second}, false},
		{algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 1, Period: algorithms.Second}, false},
	} {
		if got := PerSecond(limitOf(t, c.s)); got != c.want {
			t.Errorf("%+v: %t, want %t", c.s, got, c.want)
		}
	}
}

func TestSlotsOfDescriptorsAndKeys(t *testing.T) {
	entries := []descriptors.Entry{{Key: "a", Value: "1"}, {Key: "b", Value: "2"}, {Key: "b", Value: "3"}}
	for name, c := range map[string]struct {
		p         Policy
		of, ofKey uint64
		key       []string
	}{
		"no extras":           {Policy{}, 0, 0, []string{"1"}},
		"a fixed slot":        {Policy{Extras: &Extras{Slot: Slot{Fixed: 7}}}, 7, 7, []string{"1"}},
		"not the first entry": {Policy{Keys: descriptors.Keys{Open: []int{1, 2}}, Extras: &Extras{Slot: Slot{Value: 2, Fixed: 9}}}, SlotNumber("3"), SlotNumber("3"), []string{"2", "3"}},
		"the second value":    {Policy{Keys: descriptors.Keys{Open: []int{0, 1}}, Extras: &Extras{Slot: Slot{Value: 2}}}, SlotNumber("2"), SlotNumber("y"), []string{"x", "y"}},
		"a key that is short": {Policy{Keys: descriptors.Keys{Open: []int{0, 1}}, Extras: &Extras{Slot: Slot{Value: 2, Fixed: 7}}}, SlotNumber("2"), 7, []string{"x"}},
		"an entry":            {Policy{Extras: &Extras{Slot: Slot{Entry: "b", Fixed: 7}}}, SlotNumber("2"), 7, []string{"x"}},
		"an entry in a key":   {Policy{Extras: &Extras{Slot: Slot{Entry: "b", Fixed: 7}}}, SlotNumber("2"), SlotNumber("y"), []string{"a", "b", "b", "y", "b", "z", "b"}},
		"an entry that lacks": {Policy{Extras: &Extras{Slot: Slot{Entry: "c", Fixed: 7}}}, 7, 7, nil},
	} {
		if of, ofKey := c.p.SlotOf(entries), c.p.SlotOfKey(c.key); of != c.of || ofKey != c.ofKey {
			t.Errorf("%s: slot %x of the descriptor and %x of the key, want %x and %x", name, of, ofKey, c.of, c.ofKey)
		}
	}
}

// The phase of a fixed window is derived from the hash.
func TestKeysOfWindowsHaveAHash(t *testing.T) {
	for kind, want := range map[algorithms.Kind]bool{algorithms.FixedWindow: true, algorithms.TokenBucket: false} {
		p := &Policy{Limit: limitOf(t, algorithms.Spec{Kind: kind, Rate: 1, Period: algorithms.Second}), Keys: descriptors.Keys{Prefix: "p", Open: []int{0}}}
		key, hash := p.AppendKey(nil, []descriptors.Entry{{Key: "a", Value: "1"}})
		same, again := p.AppendKeyOf(nil, []string{"1"})
		if hash != again || (hash != 0) != want || string(key) != string(same) {
			t.Errorf("%v: hash %x of the descriptor %q, and %x of the key %q", kind, hash, key, again, same)
		}
	}
}

func TestNamesOfOnFailureAndPlaces(t *testing.T) {
	for name, f := range OnFailures {
		if f.String() != name {
			t.Errorf("%s has the name %s, want %s", name, f, name)
		}
	}
	if len(OnFailures) != len(onFailureNames) {
		t.Errorf("%d names, want %d", len(OnFailures), len(onFailureNames))
	}
	if a, b := (Place{File: "f"}).String(), (Place{File: "f", Line: 3}).String(); a != "f" || b != "f:3" {
		t.Errorf("got %q and %q, want \"f\" and \"f:3\"", a, b)
	}
}

var limitOf = limittest.Compile
