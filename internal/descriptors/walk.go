package descriptors

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
)

// All iterates over each node of the tree with the patterns that lead to it. The order depends only on the
// patterns and, for keys with a "*", on the order in which they were added. The loop must not change the slice
// of patterns.
func (t *Tree) All() iter.Seq2[[]Pattern, *Node] {
	return func(yield func([]Pattern, *Node) bool) { t.root.all(nil, yield) }
}

func (at *level) all(above []Pattern, yield func([]Pattern, *Node) bool) bool {
	type child struct {
		Pattern
		node *Node
	}
	var children []child
	t := at.tables()
	keys := maps.Collect(t.keys.all())
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		v, first := keys[key], len(children)
		v.patterns(key, func(p Pattern, n *Node) { children = append(children, child{p, n}) })
		slices.SortFunc(children[first:], func(a, b child) int { return cmp.Or(cmp.Compare(a.How, b.How), cmp.Compare(a.Text, b.Text)) })
		if v.open != nil {
			children = append(children, child{Pattern{Key: key, How: Any}, v.open})
		}
	}
	for _, w := range t.loose {
		children = append(children, child{w.Pattern, w.node})
	}
	for _, c := range children {
		path := append(slices.Clip(above), c.Pattern)
		if !yield(path, c.node) || !c.node.next.all(path, yield) {
			return false
		}
	}
	return true
}

// anything is a value that hardly any configuration has in an exact pattern.
const anything = "\x00any"

// Sample returns an entry that p matches, and that patterns for other values probably do not match. ok is
// false if p is a regular expression, or has a "*" in the key.
func (p *Pattern) Sample() (e Entry, ok bool) {
	value := ""
	switch p.How {
	case Exact:
		value = p.Text
	case HasPrefix:
		value = p.Text + anything
	case HasSuffix:
		value = anything + p.Text
	case Wildcard:
		value = strings.ReplaceAll(p.Text, "*", anything)
	case Any:
		value = anything
	case Regex:
		return Entry{}, false
	}
	return Entry{p.Key, value}, p.Key != ""
}
