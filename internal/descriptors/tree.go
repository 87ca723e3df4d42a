package descriptors

import (
	"slices"
	"strings"
)

// Tree has the compiled descriptor patterns of one domain. The zero Tree is empty.
type Tree struct {
	root level
}

// Node is a place in a Tree. It applies to descriptors that end at this place.
type Node struct {
	// Policies are the limits at this place. If there are none, the configuration does not
	// limit descriptors that end here.
	Policies []*Policy
	// MaxOverride bounds the limits that come with requests for this place. nil means that the place sets no
	// bound.
	MaxOverride *Policy
	next        level
}

// level holds the patterns for one entry of a descriptor. Most levels of a deep tree have one pattern, and a
// configuration may have several such levels for each limit. So the level itself stores a single pattern, and
// tables store several patterns.
type level struct {
	key, text string // the key and value of the only pattern; an empty text means any value
	node      *Node  // the node of the only pattern; nil if there is no pattern, or if there are tables
	many      *tables
}

// tables hold the patterns that a level cannot hold itself: several patterns, one for which isOnly returns
// false, or one with a "*" in the key.
type tables struct {
	keys table[values]
	wildKeys
}

// wildKeys holds the patterns of a level that have a "*" in the key.
type wildKeys struct {
	// loose has the patterns with a "*" in the key. As in the reference server, such a pattern is matched
	// against key_value as one text.
	loose []wildcard
	// count is the number of wildcards and regular expressions in the level, including those for the values of
	// keys without a "*". It numbers the next one, because all are tried in the order of declaration.
	count int
}

// tables returns the patterns of the level as tables. If the level has tables, it returns these, and only put may
// change them. Otherwise it returns new tables.
func (at *level) tables() *tables {
	if at.many != nil {
		return at.many
	}
	t := &tables{}
	if at.node != nil {
		t.add(ValuePattern(at.key, at.text), at.node)
	}
	return t
}

// isOnly reports whether a level can store p without tables, if p has no "*" in the key.
func (p *Pattern) isOnly() bool { return p.How == Any || p.How == Exact && p.Text != "" }

// values holds the patterns of one key.
type values struct {
	exact table[Node]
	open  *Node // the node for any value
	*ranges
}

// ranges holds the patterns of one key that match several values.
type ranges struct {
	prefix, suffix affixes
	wild           []wildcard
}

// noRanges is shared by all keys without ranges. Most keys have none.
var noRanges ranges

func newValues() *values { return &values{ranges: &noRanges} }

// ownRanges returns the ranges of v for changing. It first replaces the shared noRanges.
func (v *values) ownRanges() *ranges {
	if v.ranges == &noRanges {
		v.ranges = &ranges{}
	}
	return v.ranges
}

// affixes holds the prefixes, or the suffixes, of values.
type affixes struct {
	lengths []int // the different lengths of the texts, longest first
	nodes   map[string]*Node
}

// Possible is an entry whose value may be unknown.
type Possible struct {
	Key, Value string
	Known      bool
}

// CouldMatch reports whether a descriptor with these entries could match a policy. It may return true although
// no such descriptor matches, because it ignores precedence and compares values only with exact patterns.
func (t *Tree) CouldMatch(entries []Possible) bool {
	return len(entries) > 0 && t.root.couldMatch(entries)
}

func (at *level) couldMatch(entries []Possible) bool {
	e, rest := &entries[0], entries[1:]
	leads := func(n *Node) bool {
		return n != nil && (len(rest) == 0 && len(n.Policies) > 0 || len(rest) > 0 && n.next.couldMatch(rest))
	}
	wild := func(w wildcard) bool { return leads(w.node) }
	t := at.tables()
	if slices.ContainsFunc(t.loose, wild) {
		return true
	}
	for key, v := range t.keys.all() {
		if slices.ContainsFunc(v.wild, func(w wildcard) bool { return (key == e.Key || w.How == Wildcard) && wild(w) }) {
			return true
		}
	}
	v := t.keys.get(e.Key)
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
	if leads(v.open) || e.Known && leads(v.exact.get(e.Value)) {
		return true
	}
	if !e.Known {
		for _, n := range v.exact.all() {
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
	order int // the position among the wildcards of the level
	node  *Node
}

// Add returns the node for p below parent, and creates it if necessary. A nil parent means the root. added
// reports whether the node is new.
func (t *Tree) Add(parent *Node, p Pattern) (node *Node, added bool) {
	made := &Node{}
	node = t.Put(parent, p, made)
	return node, node == made
}

// Put adds node for p below parent, unless there is a node for p. It returns the node for p. A nil parent means the
// root. node may have nodes below it.
func (t *Tree) Put(parent *Node, p Pattern, node *Node) *Node {
	at := &t.root
	if parent != nil {
		at = &parent.next
	}
	return at.put(p, node)
}

func (at *level) put(p Pattern, node *Node) *Node {
	if at.many == nil {
		loose := strings.Contains(p.Key, "*")
		switch {
		case at.node == nil && !loose && p.isOnly():
			at.key, at.text, at.node = p.Key, p.Text, node
			return node
		case at.node != nil && !loose && p.isOnly() && at.key == p.Key && at.text == p.Text:
			return at.node
		}
		at.many = at.tables()
		at.key, at.text, at.node = "", "", nil
	}
	return at.many.add(p, node)
}

func (t *tables) add(p Pattern, node *Node) *Node {
	if strings.Contains(p.Key, "*") {
		text := p.Key
		if p.Text != "" {
			text += "_" + p.Text
		}
		return t.wildKeys.add(&t.loose, Pattern{How: Wildcard, Text: text}, node)
	}
	v := t.keys.get(p.Key)
	if v == nil {
		v = newValues()
		t.keys.add(p.Key, v)
	}
	switch p.How {
	case HasPrefix:
		return v.ownRanges().prefix.add(p.Text, node)
	case HasSuffix:
		return v.ownRanges().suffix.add(p.Text, node)
	case Wildcard, Regex:
		return t.wildKeys.add(&v.ownRanges().wild, p, node)
	case Any:
		if v.open == nil {
			v.open = node
		}
		return v.open
	case Exact:
	}
	if have := v.exact.get(p.Text); have != nil {
		return have
	}
	v.exact.add(p.Text, node)
	return node
}

// add returns the node for p in list, and adds p if necessary. list is w.loose, or the wildcards of a key.
func (w *wildKeys) add(list *[]wildcard, p Pattern, node *Node) *Node {
	for _, have := range *list {
		if have.How == p.How && have.Text == p.Text {
			return have.node
		}
	}
	*list = append(*list, wildcard{Pattern: p, order: w.count, node: node})
	w.count++
	return node
}

func (a *affixes) add(text string, node *Node) *Node {
	if have := a.nodes[text]; have != nil {
		return have
	}
	if a.nodes == nil {
		a.nodes = map[string]*Node{}
	}
	a.nodes[text] = node
	if !slices.Contains(a.lengths, len(text)) {
		a.lengths = append(a.lengths, len(text))
		slices.SortFunc(a.lengths, func(a, b int) int { return b - a })
	}
	return node
}

// longest returns the node of the longest affix that is a prefix of value or, if atEnd is true, a suffix of it. It
// returns nil if there is no such affix.
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

// Match returns the node at which the descriptor ends, or nil. At each entry it chooses the pattern with the
// highest precedence (see How). It does not backtrack.
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
	switch {
	case at.many != nil:
		return at.many.match(e)
	case at.node != nil && at.key == e.Key && (at.text == "" || at.text == e.Value):
		return at.node
	default:
		return nil
	}
}

func (t *tables) match(e *Entry) *Node {
	v := t.keys.get(e.Key)
	var found *wildcard
	if v != nil {
		if node := v.exact.get(e.Value); node != nil {
			return node
		}
		if v.ranges != &noRanges {
			node := v.prefix.longest(e.Value, false)
			if node == nil {
				node = v.suffix.longest(e.Value, true)
			}
			if node != nil {
				return node
			}
			found = v.firstWild(e.Value)
		}
	}
	for i := range t.loose {
		w := &t.loose[i]
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

func (r *ranges) firstWild(value string) *wildcard {
	for i := range r.wild {
		if r.wild[i].matches(value) {
			return &r.wild[i]
		}
	}
	return nil
}

// matches reports whether w, whose key has no "*", matches value.
func (w *wildcard) matches(value string) bool {
	if w.regex != nil {
		return w.regex.MatchString(value)
	}
	return glob(w.Text, "", value)
}

// glob reports whether pattern matches value. Each "*" in pattern matches any text. If key is not empty,
// pattern must match key + "_" + value.
func glob(pattern, key, value string) bool {
	return joined{key, value, key != ""}.matches(pattern)
}

// joined is the text key_value, or value alone, without a copy of the bytes.
type joined struct {
	key, value string
	both       bool
}

func (j joined) matches(pattern string) bool {
	// The usual two-pointer algorithm: after a mismatch, the last "*" matches one more byte.
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
