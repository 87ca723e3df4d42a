package descriptors

import (
	"slices"
	"strings"
)

// Tree has the patterns of one domain, and what descriptors that match them find: a T at each Node. The zero Tree is
// empty. Several goroutines may use a Tree at the same time, unless one of them calls Add.
type Tree[T any] struct {
	root level[T]
}

// Node is a place in a Tree. It applies to descriptors that end at this place.
type Node[T any] struct {
	Found T
	next  level[T]
}

// level holds the patterns for one entry of a descriptor. Most levels of a deep tree have one pattern, and a
// configuration may have several such levels for each limit. So the level itself stores a single pattern, and
// tables store several patterns.
type level[T any] struct {
	key, text string   // the key and value of the only pattern; an empty text means any value
	node      *Node[T] // the node of the only pattern; nil if there is no pattern, or if there are tables
	many      *tables[T]
}

// tables hold the patterns that a level cannot hold itself: several patterns, one for which isOnly returns
// false, or one with a "*" in the key.
type tables[T any] struct {
	keys table[values[T]]
	// loose has the patterns with a "*" in the key. As in the reference server, such a pattern is matched
	// against key_value as one text.
	loose []branch[T]
	// count is the number of wildcards and regular expressions in the level, including those for the values of
	// keys without a "*". It numbers the next one, because all are tried in the order of declaration.
	count int
}

// tables returns the patterns of the level as tables. If the level has tables, it returns these, and only add may
// change them. Otherwise it returns new tables.
func (at *level[T]) tables() *tables[T] {
	if at.many != nil {
		return at.many
	}
	t := &tables[T]{}
	if at.node != nil {
		t.add(ValuePattern(at.key, at.text), at.node)
	}
	return t
}

// isOnly reports whether a level can store p without tables, if p has no "*" in the key.
func (p *Pattern) isOnly() bool { return p.How == Any || p.How == Exact && p.Text != "" }

// values holds the patterns of one key.
type values[T any] struct {
	exact  table[Node[T]]
	open   *Node[T]   // the node for any value
	ranges *ranges[T] // nil for most keys
}

// ranges holds the patterns of one key that match several values.
type ranges[T any] struct {
	prefix, suffix affixes[T]
	wild           []branch[T]
}

// affixes holds the prefixes, or the suffixes, of values.
type affixes[T any] struct {
	lengths []int // the different lengths of the texts, longest first
	nodes   map[string]*Node[T]
}

// branch is a pattern of a level, with its node. Its Key is "" if the Pattern has a "*" in the key: then its text covers
// key and value.
type branch[T any] struct {
	Pattern
	order int // for wildcards and regular expressions: the position among those of the level
	node  *Node[T]
}

// Add returns the node for p below parent, and creates it if necessary. A nil parent means the root. added
// reports whether the node is new.
func (t *Tree[T]) Add(parent *Node[T], p Pattern) (node *Node[T], added bool) {
	at := &t.root
	if parent != nil {
		at = &parent.next
	}
	made := &Node[T]{}
	node = at.add(p, made)
	return node, node == made
}

// add adds node for p, unless there is a node for p. It returns the node for p.
func (at *level[T]) add(p Pattern, node *Node[T]) *Node[T] {
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

func (t *tables[T]) add(p Pattern, node *Node[T]) *Node[T] {
	if strings.Contains(p.Key, "*") {
		text := p.Key
		if p.Text != "" {
			text += "_" + p.Text
		}
		return t.addWild(&t.loose, Pattern{How: Wildcard, Text: text}, node)
	}
	v := t.keys.get(p.Key)
	if v == nil {
		v = &values[T]{}
		t.keys.add(p.Key, v)
	}
	switch p.How {
	case Any:
		if v.open == nil {
			v.open = node
		}
		return v.open
	case Exact:
		if have := v.exact.get(p.Text); have != nil {
			return have
		}
		v.exact.add(p.Text, node)
		return node
	}
	if v.ranges == nil {
		v.ranges = &ranges[T]{}
	}
	switch p.How {
	case HasPrefix:
		return v.ranges.prefix.add(p.Text, node)
	case HasSuffix:
		return v.ranges.suffix.add(p.Text, node)
	default:
		return t.addWild(&v.ranges.wild, p, node)
	}
}

// addWild returns the node for p in list, and adds p if necessary. list is t.loose, or the wildcards of a key.
func (t *tables[T]) addWild(list *[]branch[T], p Pattern, node *Node[T]) *Node[T] {
	for _, have := range *list {
		if have.How == p.How && have.Text == p.Text {
			return have.node
		}
	}
	*list = append(*list, branch[T]{Pattern: p, order: t.count, node: node})
	t.count++
	return node
}

func (a *affixes[T]) add(text string, node *Node[T]) *Node[T] {
	if have := a.nodes[text]; have != nil {
		return have
	}
	if a.nodes == nil {
		a.nodes = map[string]*Node[T]{}
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
func (a *affixes[T]) longest(value string, atEnd bool) *Node[T] {
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
// highest precedence (see How). It does not backtrack, and allocates nothing.
func (t *Tree[T]) Match(entries []Entry) *Node[T] {
	at := &t.root
	var node *Node[T]
	for i := range entries {
		if node = at.match(&entries[i]); node == nil {
			return nil
		}
		at = &node.next
	}
	return node
}

func (at *level[T]) match(e *Entry) *Node[T] {
	switch {
	case at.many != nil:
		return at.many.match(e)
	case at.node != nil && at.key == e.Key && (at.text == "" || at.text == e.Value):
		return at.node
	default:
		return nil
	}
}

func (t *tables[T]) match(e *Entry) *Node[T] {
	v := t.keys.get(e.Key)
	var found *branch[T]
	if v != nil {
		if node := v.exact.get(e.Value); node != nil {
			return node
		}
		if r := v.ranges; r != nil {
			node := r.prefix.longest(e.Value, false)
			if node == nil {
				node = r.suffix.longest(e.Value, true)
			}
			if node != nil {
				return node
			}
			found = r.firstWild(e.Value)
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

func (r *ranges[T]) firstWild(value string) *branch[T] {
	for i := range r.wild {
		if r.wild[i].matches(value) {
			return &r.wild[i]
		}
	}
	return nil
}
