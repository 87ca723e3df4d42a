package descriptors

import "strings"

// Tree is the compiled descriptors of one domain.
type Tree struct {
	root level
}

// Node is one place of the tree: what a descriptor meets that ends there.
type Node struct {
	// Policies are the limits at this place; none: descriptors that end here are not limited.
	Policies []*Policy
	next     level
}

// level holds the patterns for one entry.
type level struct {
	keys map[string]*values
	// loose are patterns with a "*" in the key itself. As in the reference server they are matched
	// against key_value as one text.
	loose []wildcard
	count int // patterns with a "*", in both
}

// values holds the patterns of one key.
type values struct {
	exact map[string]*Node
	wild  []wildcard
	open  *Node // any value
}

type wildcard struct {
	pattern string
	order   int // its place among the wildcards of the level
	node    *Node
}

// Add returns the node for key and value below parent (nil: the root), made if need be. A value
// "" stands for any. It reports whether the node is new.
func (t *Tree) Add(parent *Node, key, value string) (node *Node, added bool) {
	at := &t.root
	if parent != nil {
		at = &parent.next
	}
	if strings.Contains(key, "*") {
		pattern := key
		if value != "" {
			pattern += "_" + value
		}
		return at.addWild(&at.loose, pattern)
	}
	if at.keys == nil {
		at.keys = map[string]*values{}
	}
	v := at.keys[key]
	if v == nil {
		v = &values{}
		at.keys[key] = v
	}
	switch {
	case value == "":
		if v.open == nil {
			v.open, added = &Node{}, true
		}
		return v.open, added
	case strings.Contains(value, "*"):
		return at.addWild(&v.wild, value)
	default:
		if v.exact == nil {
			v.exact = map[string]*Node{}
		}
		if node = v.exact[value]; node == nil {
			node, added = &Node{}, true
			v.exact[value] = node
		}
		return node, added
	}
}

func (at *level) addWild(list *[]wildcard, pattern string) (*Node, bool) {
	for _, w := range *list {
		if w.pattern == pattern {
			return w.node, false
		}
	}
	w := wildcard{pattern: pattern, order: at.count, node: &Node{}}
	at.count++
	*list = append(*list, w)
	return w.node, true
}

// Match returns the node at which the descriptor ends, or nil. At each entry an exact value wins
// over wildcards, the first declared over later ones, and these over a key without a value; what
// was chosen is never taken back.
func (t *Tree) Match(entries []Entry) *Node {
	at := &t.root
	var node *Node
	for i := range entries {
		if node = at.match(&entries[i]); node == nil {
			return nil
		}
		at = &node.next
	}
	return node
}

func (at *level) match(e *Entry) *Node {
	v := at.keys[e.Key]
	if v != nil {
		if node := v.exact[e.Value]; node != nil {
			return node
		}
	}
	var found *wildcard
	if v != nil {
		for i := range v.wild {
			if glob(v.wild[i].pattern, "", e.Value) {
				found = &v.wild[i]
				break
			}
		}
	}
	for i := range at.loose {
		w := &at.loose[i]
		if (found == nil || w.order < found.order) && (joined{e.Key, e.Value, true}).matches(w.pattern) {
			found = w
			break
		}
	}
	switch {
	case found != nil:
		return found.node
	case v != nil:
		return v.open
	default:
		return nil
	}
}

// glob tells whether pattern, in which each "*" stands for any text, matches value, or, where key
// is given, key + "_" + value.
func glob(pattern, key, value string) bool {
	return joined{key, value, key != ""}.matches(pattern)
}

// joined is key_value without joining them, or value alone.
type joined struct {
	key, value string
	both       bool
}

// matches tells whether pattern matches all of j.
func (j joined) matches(pattern string) bool {
	// The classic two-pointer match: on a mismatch the last "*" swallows one byte more.
	p, s, star, mark := 0, 0, -1, 0
	for s < j.len() {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, s
			p++
		case p < len(pattern) && pattern[p] == j.at(s):
			p++
			s++
		case star >= 0:
			mark++
			p, s = star+1, mark
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

func (j joined) len() int {
	if !j.both {
		return len(j.value)
	}
	return len(j.key) + 1 + len(j.value)
}

func (j joined) at(i int) byte {
	switch n := len(j.key); {
	case !j.both:
		return j.value[i]
	case i < n:
		return j.key[i]
	case i == n:
		return '_'
	default:
		return j.value[i-n-1]
	}
}
