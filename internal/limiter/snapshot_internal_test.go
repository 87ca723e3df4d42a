package limiter

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// A domain keeps at most maxOverrides compiled overrides, so that clients cannot fill the memory.
func TestCompiledOverridesAreBounded(t *testing.T) {
	d := &Domain{Name: "d"}
	for rate := range uint32(maxOverrides + 10) {
		if d.override(Override{Rate: rate, Period: algorithms.Second}) == nil {
			t.Fatalf("rate %d does not compile", rate)
		}
	}
	kept := 0
	d.overrides.Range(func(any, any) bool { kept++; return true })
	if kept != maxOverrides || d.overrideCount.Load() != maxOverrides {
		t.Errorf("%d overrides are kept and %d are counted, want %d", kept, d.overrideCount.Load(), maxOverrides)
	}
}
