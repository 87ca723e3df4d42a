package descriptors

import (
	"strings"
	"testing"
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
	// Copied wildcards take precedence over one that is added later.
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
