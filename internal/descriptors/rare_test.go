package descriptors

import (
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestCopiedReplacesEachPolicy(t *testing.T) {
	paths := []string{
		"p,only!", "q,a,b!", "q,c!", "r,k=x!", "r,k^=ab!", "r,k^=a!", "r,k$=yz!", "r,k=m*n!", "r,k~=[0-9]+!", "r,k!", "r,k2,deep!", "r,k3=1!", "r,any*!", "r,later=*!",
		"s,one,two=2!",
	}
	requests := []string{
		"p=1,only=1", "q=1,a=1,b=1", "q=1,c=1", "r=1,k=x", "r=1,k=abc", "r=1,k=ac", "r=1,k=1yz", "r=1,k=mxn", "r=1,k=12", "r=1,k=?", "r=1,k2=1,deep=1", "r=1,k3=1",
		"r=1,anyone=1", "r=1,later=1", "s=1,one=1,two=2",
	}
	tree, copied := treeOf(t, paths...), &Tree{}
	nodes := map[string]*Node{}
	for pattern, node := range tree.All() {
		if len(pattern) == 1 {
			nodes[pattern[0].Key] = node
			node.MaxOverride = &Policy{Name: "bound"}
		}
	}
	for _, key := range []string{"p", "q", "r", "s"} {
		c := nodes[key].Copied(func(p *Policy) *Policy { return &Policy{Name: "copy of " + p.Name} })
		if c.MaxOverride.Name != "copy of bound" {
			t.Errorf("%s: the bound is %s, want a copy", key, c.MaxOverride.Name)
		}
		copied.Put(nil, ValuePattern(key, ""), c)
	}
	for _, request := range requests {
		was := matchedName(t, tree, request)
		if got := matchedName(t, copied, request); was == "nothing" || strings.HasPrefix(was, "copy") || got != "copy of "+was {
			t.Errorf("%s: matches %s, and %s in the copy", request, was, got)
		}
	}
	// Another pattern comes after those of the copy.
	last := copied.Put(nodeOf(copied, "r"), Pattern{Key: "a*", How: Wildcard}, &Node{})
	last.Policies = []*Policy{{Name: "last"}}
	if got := matchedName(t, copied, "r=1,anyone=1"); got != "copy of r,any*" {
		t.Errorf("got %s, want the pattern that was first", got)
	}
	copied.Put(nodeOf(copied, "r"), Pattern{Key: "k*", How: Wildcard}, &Node{})
	if got := matchedName(t, copied, "r=1,k=mxn"); got != "copy of r,k=m*n" {
		t.Errorf("got %s, want the pattern that was first", got)
	}
	if got := matchedName(t, tree, "r=1,axe=1"); got != "nothing" {
		t.Errorf("the original matches %s, want nothing", got)
	}
	if (*Node)(nil).Copied(nil) != nil {
		t.Error("no node has a copy")
	}
}

func nodeOf(tree *Tree, key string) *Node { return tree.Match([]Entry{{Key: key, Value: "1"}}) }

func TestKeysOfExactly128BytesAreKept(t *testing.T) {
	limit := algorithms.Limit{}
	p := &Policy{Limit: &limit, Prefix: "1a\x01d\x05limit\x01n"}
	for n, want := range map[int]byte{127: 'v', 128: 'd'} {
		key, _ := p.AppendKeyOf(nil, []string{strings.Repeat("x", n)})
		if got := key[len(p.Prefix)]; got != want {
			t.Errorf("%d bytes and their length: got the form %c, want %c", n, got, want)
		}
	}
}

func TestBoundsOfExpressions(t *testing.T) {
	p, err := RegexPattern("k", "a.c")
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]bool{"abc": true, "a\nc": true, "abc\n": false, "abcd": false, "xabc": false} {
		if got := (&wildcard{Pattern: p}).matches(value); got != want {
			t.Errorf("%q: matches %v, want %v", value, got, want)
		}
	}
	longest := "[" + strings.Repeat("a", maxRegex-2) + "]"
	if _, err := RegexPattern("k", longest); err != nil {
		t.Errorf("%d bytes: %v, want no error", len(longest), err)
	}
	accepted := 0
	for n := 1; n < maxRegexSteps+2; n++ {
		if _, err := RegexPattern("k", strings.Repeat("a", n)); err == nil {
			accepted = n
		}
	}
	if accepted != 196 { // with 2 steps for each end, 200
		t.Errorf("at most %d characters are accepted, want 196", accepted)
	}
}

func TestWhatARequestReserves(t *testing.T) {
	for _, test := range []struct {
		settle             Settle
		estimate, declared int64
		want               int64
	}{
		{Settle{Most: 100}, 10, 0, 10},
		{Settle{Most: 100}, 10, 20, 20},
		{Settle{Most: 100}, 10, 5, 10},
		{Settle{Most: 100, TrustDeclared: true}, 10, 5, 5},
		{Settle{Most: 100, TrustDeclared: true}, 10, 0, 10},
		{Settle{Most: 100, Least: 7}, 1, 0, 7},
		{Settle{Most: 100}, 500, 0, 100},
	} {
		if got := test.settle.Reserves(test.estimate, test.declared); got != test.want {
			t.Errorf("%+v: got %d, want %d", test, got, test.want)
		}
	}
}

func TestPartsOfNumbers(t *testing.T) {
	if got := PartOf(10, 1.5); got != 10 {
		t.Errorf("one and a half times 10: got %d, want 10", got)
	}
	if got := PartOf(1<<53, 1); got != 1<<53 {
		t.Errorf("all of 2^53: got %d", got)
	}
	one := func(n int64) *int64 { return &n }
	part := Part(algorithms.Spec{Rate: 10, Initial: one(2), MaxReserved: one(1), MaxDebt: one(1), Minimum: &algorithms.Rate{Units: 4}}, 0.5)
	if part.Rate != 5 || *part.Initial != 1 || *part.MaxReserved != 0 || *part.MaxDebt != 0 || part.Minimum.Units != 2 {
		t.Errorf("got %+v with initial %d, %d reserved, debt %d and minimum %d; want 5, 1, 0, 0 and 2",
			part, *part.Initial, *part.MaxReserved, *part.MaxDebt, part.Minimum.Units)
	}
}

func TestWordsOfSettlements(t *testing.T) {
	limit := &algorithms.Limit{}
	for _, test := range []struct {
		settle Settle
		want   []string
	}{
		{Settle{Most: 9, Unknown: 0, Least: 1}, []string{"is not reported costs 0 units", "; at least 1 and at most 9"}},
		{Settle{Most: 9, Unknown: -1}, []string{"is not reported costs what it reserved", "; at most 9"}},
	} {
		got := strings.Join(test.settle.Words(limit), "\n")
		for _, want := range test.want {
			if !strings.Contains(got, want) {
				t.Errorf("%+v: got %q, want %q in it", test.settle, got, want)
			}
		}
	}
}

func TestPrintableKeeps128Bytes(t *testing.T) {
	text := strings.Repeat("x", 128)
	if got := Printable(text); got != text {
		t.Errorf("got %s, want the text", got)
	}
	if got := Printable(text + "y"); got != text+"…" {
		t.Errorf("got %s, want the text and …", got)
	}
}

func TestExplainAtItsEdges(t *testing.T) {
	explain := func(descriptor string, paths ...string) Explanation {
		entries, err := Parse(descriptor)
		if err != nil {
			t.Fatal(err)
		}
		return treeOf(t, paths...).Explain(entries)
	}
	if m := explain("user=1,deep=1", "user!", "user,deep,end!").Miss; m == nil || m.Reason != TooShort || m.Shorter != 1 || m.More != 0 {
		t.Errorf("got %+v, want too short, and a limit for the first entry", m)
	}
	if m := explain("user=1", "user,a,b,c!").Miss; m == nil || !strings.HasSuffix(m.String(), "under a,b,c") {
		t.Errorf("got %v, want the whole way to the limit", m)
	}
	if m := explain("user=1", "user,any*!").Miss; m == nil || !strings.HasSuffix(m.String(), "under any*") {
		t.Errorf("got %v, want the key with a *", m)
	}
	if m := explain("other=1", "any*!").Miss; m == nil || m.Reason != NoKey {
		t.Errorf("got %v, want that there is no such key", m)
	}
	if m := explain(`k=\\a`, `k=\\a1!`, "k=a!", "k=b!").Miss; m == nil || m.Near[0] != "a" {
		t.Errorf("got %v, want the value a first", m)
	}
	if s := explain("k=ab", "k^=ab!", "k=*b!", "k=a*!").Steps; len(s) != 1 || s[0].Pattern != "k=ab*" || strings.Join(s[0].Over, " ") != "k=*b k=a*" {
		t.Errorf("got %+v, want the prefix ab, and the other patterns in their order", s)
	}
}

func TestPatternsWithOneTextAreDifferent(t *testing.T) {
	tree := treeOf(t, "k=a*!", "k~=a*!")
	for descriptor, want := range map[string]string{"k=ab": "k=a*", "k=aa": "k=a*", "k=": "k~=a*"} {
		if got := matchedName(t, tree, descriptor); got != want {
			t.Errorf("%s: got %s, want %s", descriptor, got, want)
		}
	}
}
