package descriptors

import "maps"

// Copied returns a copy of n and of all nodes below it. It replaces each policy by the result of the
// function change.
func (n *Node) Copied(change func(*Policy) *Policy) *Node {
	if n == nil {
		return nil
	}
	own := &Node{next: n.next}
	for _, p := range n.Policies {
		own.Policies = append(own.Policies, change(p))
	}
	if n.MaxOverride != nil {
		own.MaxOverride = change(n.MaxOverride)
	}
	own.next.node = n.next.node.Copied(change)
	if n.next.many != nil {
		own.next.many = n.next.many.copied(change)
	}
	return own
}

func (t *tables) copied(change func(*Policy) *Policy) *tables {
	own := &tables{wildKeys: t.wildKeys}
	own.loose = copiedWild(t.loose, change)
	own.keys = t.keys.copied(func(v *values) *values {
		of := &values{open: v.open.Copied(change), ranges: &noRanges}
		of.exact = v.exact.copied(func(n *Node) *Node { return n.Copied(change) })
		if v.ranges != &noRanges {
			of.ranges = &ranges{v.prefix.copied(change), v.suffix.copied(change), copiedWild(v.wild, change)}
		}
		return of
	})
	return own
}

func (a *affixes) copied(change func(*Policy) *Policy) affixes {
	own := affixes{lengths: a.lengths, nodes: maps.Clone(a.nodes)}
	for text, n := range own.nodes {
		own.nodes[text] = n.Copied(change)
	}
	return own
}

func copiedWild(list []wildcard, change func(*Policy) *Policy) (own []wildcard) {
	for _, w := range list {
		w.node = w.node.Copied(change)
		own = append(own, w)
	}
	return own
}
