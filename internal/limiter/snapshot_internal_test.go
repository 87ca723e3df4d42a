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

// The definition of a named limit is the last of its policies, wherever the configuration has it.
func TestThePoliciesOfALimit(t *testing.T) {
	definition := &Policy{Domain: "d", Name: "b", Index: 1, Extras: &Extras{Named: true}}
	s := &Snapshot{Policies: []*Policy{definition, {Domain: "d", Name: "b", Index: 2}, {Domain: "d", Name: "a", Index: 3}, {Domain: "c", Name: "b"}, {Domain: "d", Name: "b", Index: 0}}}
	if got := s.Find("d", "b"); len(got) != 3 || got[0].Index != 0 || got[1].Index != 2 || got[2] != definition {
		t.Errorf("got %+v, want the uses, and then the definition", got)
	}
	names := ""
	for _, p := range s.Limits() {
		names += p.Domain + p.Name + " "
	}
	if names != "cb da db " || len(s.Find("d", "c")) != 0 {
		t.Errorf("got the limits %s", names)
	}
}
