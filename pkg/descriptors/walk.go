package descriptors

import (
	"cmp"
	"iter"
	"slices"
	"strings"
)

// All iterates over each node of the tree with the patterns that lead to it. The order depends only on the
// patterns and, for those that are tried in the order of declaration, on the order in which they were added. The loop
// must not change the slices of patterns.
func (t *Tree[T]) All() iter.Seq2[[]Pattern, *Node[T]] {
	return func(yield func([]Pattern, *Node[T]) bool) { t.root.all(nil, yield) }
}

func (at *level[T]) all(above []Pattern, yield func([]Pattern, *Node[T]) bool) bool {
	branches := at.branches()
	slices.SortFunc(branches, func(a, b branch[T]) int {
		switch {
		case a.Key == b.Key && a.InOrder() && b.InOrder():
			return cmp.Compare(a.order, b.order)
		case a.Key == "" || b.Key == "":
			return cmp.Compare(b.Key, a.Key)
		}
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.How, b.How), cmp.Compare(a.Text, b.Text))
	})
	for _, b := range branches {
		path := append(slices.Clip(above), b.Pattern)
		if !yield(path, b.node) || !b.node.next.all(path, yield) {
			return false
		}
	}
	return true
}

// branches returns the patterns of the level, in no particular order.
func (at *level[T]) branches() (list []branch[T]) {
	t := at.tables()
	for key, v := range t.keys.all() {
		add := func(how How, text string, node *Node[T]) {
			list = append(list, branch[T]{Pattern{Key: key, How: how, Text: text}, 0, node})
		}
		for text, node := range v.exact.all() {
			add(Exact, text, node)
		}
		if v.open != nil {
			add(Any, "", v.open)
		}
		if v.ranges == nil {
			continue
		}
		for text, node := range v.ranges.prefix.nodes {
			add(HasPrefix, text, node)
		}
		for text, node := range v.ranges.suffix.nodes {
			add(HasSuffix, text, node)
		}
		list = append(list, v.ranges.wild...)
	}
	return append(list, t.loose...)
}

// Possible is an entry whose value may be unknown.
type Possible struct {
	Key, Value string
	Known      bool
}

// CouldMatch reports whether a descriptor with these entries could end at a node for which found is true. It may return
// true although no such descriptor does, because it ignores precedence and compares values only with exact patterns.
func (t *Tree[T]) CouldMatch(entries []Possible, found func(*Node[T]) bool) bool {
	return len(entries) > 0 && t.root.couldMatch(entries, found)
}

func (at *level[T]) couldMatch(entries []Possible, found func(*Node[T]) bool) bool {
	e, rest := &entries[0], entries[1:]
	leads := func(n *Node[T]) bool {
		return len(rest) == 0 && found(n) || len(rest) > 0 && n.next.couldMatch(rest, found)
	}
	if e.Known { // usually enough, and faster
		if node := at.match(&Entry{e.Key, e.Value}); node != nil && leads(node) {
			return true
		}
	}
	return slices.ContainsFunc(at.branches(), func(b branch[T]) bool {
		fits := b.Key == "" || b.Key == e.Key && (b.How != Exact || !e.Known || b.Text == e.Value)
		return fits && leads(b.node)
	})
}

// anything is a value that hardly any configuration has in a pattern.
const anything = "\x00"

// Sample returns an entry that p matches, and that patterns for other values probably do not match. ok is
// false if p is a regular expression, or has a "*" in the key. Then p does not match the entry, which has the Key of p.
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
	}
	return Entry{p.Key, value}, p.Key != "" && p.How != Regex
}
