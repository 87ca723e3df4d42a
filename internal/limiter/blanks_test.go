package limiter

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/internal/canonical"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

func TestTrimBlanksIsTargetTrim(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := string(rapid.SliceOfN(rapid.SampledFrom([]byte{' ', '\t', 'a', 0, '\n', '\v', 0xa0, 0xc2, 0xff}), 0, 8).Draw(t, "value"))
		entries := []descriptors.Entry{{Key: " k ", Value: value}, {Key: "", Value: "left alone"}}
		trimBlanks(entries)
		if entries[0] != (descriptors.Entry{Key: " k ", Value: canonical.Trim(value)}) || entries[1].Value != "left alone" {
			t.Fatalf("%q: got %q; want the value without blanks around it, and the others unchanged", value, entries)
		}
	})
}

func TestTrimBlanksAllocatesNothing(t *testing.T) {
	entries := make([]descriptors.Entry, 1)
	if n := testing.AllocsPerRun(100, func() {
		entries[0].Value = " \tvalue "
		trimBlanks(entries)
	}); n != 0 {
		t.Errorf("%v allocations; want 0", n)
	}
}
