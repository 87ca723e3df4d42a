package descriptors

import (
	"slices"
	"strings"
	"testing"
)

func TestAllNodesAndTheirSamples(t *testing.T) {
	paths := []string{"b,x=1", "a", "a=1", "a=2", "a^=p", "a^=q", "a$=s", "a=x*y*z", "a~=[0-9]+", "c=1", "k_*"}
	want := []string{"a=1", "a=2", "a=p*", "a=q*", "a=*s", "a=x*y*z", "a~[0-9]+", "a", "b", "b,x=1", "c=1", "k_*"}
	for range 2 {
		tree := grow(t, paths...)
		var got []string
		for patterns, node := range tree.All() {
			var names []string
			var entries []Entry
			all := true
			for i := range patterns {
				p := &patterns[i]
				names = append(names, p.Shown())
				e, ok := p.Sample()
				if wild := p.Key == "" || p.How == Regex; ok == wild {
					t.Errorf("%s: sample %q, %t; want a sample: %t", p.Shown(), e, ok, !wild)
				}
				entries, all = append(entries, e), all && ok
			}
			got = append(got, strings.Join(names, ","))
			if all && tree.Match(entries) != node {
				t.Errorf("%s: the samples %q lead to another node", got[len(got)-1], entries)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		slices.Reverse(paths)
		want[5], want[6] = want[6], want[5] // these two are tried in the order of declaration
	}
	if e, _ := (&Pattern{Key: "a", How: Any}).Sample(); e.Value == "" {
		t.Error("the sample of a pattern for any value is the empty value, which another pattern may match")
	}
	n := 0
	for range grow(t, paths...).All() {
		if n++; n == 10 { // within b
			break
		}
	}
	if n != 10 {
		t.Errorf("the loop ended after %d nodes, want 10", n)
	}
}
