package descriptors

import (
	"slices"
	"strings"
)

// Tree has the compiled descriptor patterns of one domain. The zero Tree is empty.
type Tree struct {
	root level
}

// Node is one place in a Tree. It applies to descriptors that end there.
type Node struct {
	// Policies are the limits at this place. If there are none, descriptors that end here are not limited.
	Policies []*Policy
	// MaxOverride bounds the limits that come with requests to this place; nil means that the place sets no bound.
	MaxOverride *Policy
	next        level
}

// level holds the patterns for one entry.
type level struct {
	keys map[string]*values
	// first and firstValues are one of keys, often the only one. A comparison is cheaper than a lookup.
	first       string
	firstValues *values
	// loose has the patterns with a "*" in the key. As in the reference server, they are matched against key_value as
	// one text.
	loose []wildcard
	count int // wildcards and regular expressions, in both
}

// values holds the patterns of one key.
type values struct {
	exact          map[string]*Node
	prefix, suffix affixes
	wild           []wildcard
	open           *Node // any value
}

// affixes holds prefixes or suffixes of values.
type affixes struct {
	lengths []int // of the texts, longest first
	nodes   map[string]*Node
}

// Possible is an entry of which the value may not be known.
type Possible struct {
	Key, Value string
	Known      bool
}

// CouldMeet reports whether a descriptor with such entries could meet a policy. Where there are patterns it may say so
// though it could not.
func (t *Tree) CouldMeet(entries []Possible) bool {
	return len(entries) > 0 && t.root.couldMeet(entries)
}

func (at *level) couldMeet(entries []Possible) bool {
	e, rest := &entries[0], entries[1:]
	leads := func(n *Node) bool {
		return n != nil && (len(rest) == 0 && len(n.Policies) > 0 || len(rest) > 0 && n.next.couldMeet(rest))
	}
	wild := func(w wildcard) bool { return leads(w.node) }
	if slices.ContainsFunc(at.loose, wild) {
		return true
	}
	for key, v := range at.keys {
		if slices.ContainsFunc(v.wild, func(w wildcard) bool { return (key == e.Key || w.How == Wildcard) && wild(w) }) {
			return true
		}
	}
	v := at.keys[e.Key]
	if v == nil {
		return false
	}
	for _, nodes := range []map[string]*Node{v.prefix.nodes, v.suffix.nodes} {
		for _, n := range nodes {
			if leads(n) {
				return true
			}
		}
	}
	if leads(v.open) || e.Known && leads(v.exact[e.Value]) {
		return true
	}
	if !e.Known {
		for _, n := range v.exact {
			if leads(n) {
				return true
			}
		}
	}
	return false
}

// wildcard is a pattern with a "*", or a regular expression.
type wildcard struct {
	Pattern
	order int // its position among those of the level
	node  *Node
}

// Add returns the node for p below parent, and makes it if it does not exist. A nil parent is the root. It reports
// whether the node is new.
func (t *Tree) Add(parent *Node, p Pattern) (node *Node, added bool) {
	at := &t.root
	if parent != nil {
		at = &parent.next
	}
	if strings.Contains(p.Key, "*") {
		text := p.Key
		if p.Text != "" {
			text += "_" + p.Text
		}
		return at.addWild(&at.loose, Pattern{How: Wildcard, Text: text})
	}
	if at.keys == nil {
		at.keys = map[string]*values{}
	}
	v := at.keys[p.Key]
	if v == nil {
		v = &values{}
		at.keys[p.Key] = v
		if at.firstValues == nil {
			at.first, at.firstValues = p.Key, v
		}
	}
	switch p.How {
	case HasPrefix:
		return v.prefix.add(p.Text)
	case HasSuffix:
		return v.suffix.add(p.Text)
	case Wildcard, Regex:
		return at.addWild(&v.wild, p)
	case Any:
		if v.open == nil {
			v.open, added = &Node{}, true
		}
		return v.open, added
	case Exact:
	}
	if v.exact == nil {
		v.exact = map[string]*Node{}
	}
	if node = v.exact[p.Text]; node == nil {
		node, added = &Node{}, true
		v.exact[p.Text] = node
	}
	return node, added
}

func (at *level) addWild(list *[]wildcard, p Pattern) (*Node, bool) {
	for _, w := range *list {
		if w.How == p.How && w.Text == p.Text {
			return w.node, false
		}
	}
	w := wildcard{Pattern: p, order: at.count, node: &Node{}}
	at.count++
	*list = append(*list, w)
	return w.node, true
}

func (a *affixes) add(text string) (node *Node, added bool) {
	if node = a.nodes[text]; node != nil {
		return node, false
	}
	if a.nodes == nil {
		a.nodes = map[string]*Node{}
	}
	node = &Node{}
	a.nodes[text] = node
	if !slices.Contains(a.lengths, len(text)) {
		a.lengths = append(a.lengths, len(text))
		slices.SortFunc(a.lengths, func(a, b int) int { return b - a })
	}
	return node, true
}

// longest is the node of the longest prefix of value, or of the longest suffix if atEnd is true.
func (a *affixes) longest(value string, atEnd bool) *Node {
	for _, n := range a.lengths {
		if n > len(value) {
			continue
		}
		text := value[:n]
		if atEnd {
			text = value[len(value)-n:]
		}
		if node := a.nodes[text]; node != nil {
			return node
		}
	}
	return nil
}

// Match returns the node at which the descriptor ends, or nil. At each entry the pattern with the highest precedence
// (see How) is chosen. There is no backtracking.
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
	v := at.firstValues
	if v == nil || at.first != e.Key {
		v = at.keys[e.Key]
	}
	if v != nil {
		if node := v.exact[e.Value]; node != nil {
			return node
		}
		if node := v.prefix.longest(e.Value, false); node != nil {
			return node
		}
		if node := v.suffix.longest(e.Value, true); node != nil {
			return node
		}
	}
	var found *wildcard
	if v != nil {
		for i := range v.wild {
			if v.wild[i].matches(e.Value) {
				found = &v.wild[i]
				break
			}
		}
	}
	for i := range at.loose {
		w := &at.loose[i]
		if (found == nil || w.order < found.order) && (joined{e.Key, e.Value, true}).matches(w.Text) {
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

// matches reports whether w, whose key has no "*", matches value.
func (w *wildcard) matches(value string) bool {
	if w.regex != nil {
		return w.regex.MatchString(value)
	}
	return glob(w.Text, "", value)
}

// glob reports whether pattern, in which each "*" matches any text, matches value. If key is not empty, it is compared
// with key + "_" + value.
func glob(pattern, key, value string) bool {
	return joined{key, value, key != ""}.matches(pattern)
}

// joined is the text key_value, or value alone, without a copy.
type joined struct {
	key, value string
	both       bool
}

// matches reports whether pattern matches all of j.
func (j joined) matches(pattern string) bool {
	// The usual two-pointer match: after a mismatch the last "*" matches one more byte.
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
