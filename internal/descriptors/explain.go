package descriptors

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Explanation describes step by step how Match treats a descriptor.
type Explanation struct {
	// Steps are the entries that matched a pattern, with their patterns, in order.
	Steps []Step
	// Node is the node at which the descriptor ended. It is nil if an entry matched no pattern, or if there is no entry.
	Node *Node
	// Miss describes why no limit applies. It is nil if a limit applies.
	Miss *Miss
}

// Step is one entry and the pattern that it matched.
type Step struct {
	Entry Entry
	// Pattern is the pattern as Pattern.Shown returns it, such as key or key=value.
	Pattern string
	How     How
	// Over lists the other patterns that match the entry. Pattern takes precedence over them.
	Over []string
}

// Reason is the reason why no limit applies to a descriptor.
type Reason uint8

const (
	NoKey     Reason = iota // no pattern has the key
	NoValue                 // patterns have the key, but none has the value
	TooLong                 // the configuration ends before the descriptor does
	TooShort                // limits exist only at lower levels, so more entries are needed
	Unlimited               // there is no limit at this level or below it
)

var reasonNames = [...]string{"no such key", "no such value", "too long", "too short", "no limit"}

func (r Reason) String() string { return reasonNames[r] }

const maxNear = 5

// Miss describes where a match failed, and what the configuration has at that level.
type Miss struct {
	Reason Reason
	// At is the index of the entry that matched no pattern, and Entry is that entry. If all entries matched, At is
	// the number of entries, and Entry is empty.
	At    int
	Entry Entry
	// Near lists the most similar texts in the configuration: keys, values or, for a descriptor that is too
	// short, the missing entries.
	Near []string
	// More is the number of candidates that are not in Near.
	More int
	// Shorter is the largest number of leading entries that would match a limit if the other entries were
	// missing. 0 means that no such number exists.
	Shorter int
}

func (m *Miss) String() string {
	near := strings.Join(m.Near, ", ")
	if m.More > 0 {
		near += fmt.Sprintf(" and %d more", m.More)
	}
	text := ""
	switch m.Reason {
	case NoKey:
		text = fmt.Sprintf("key %s: not configured at this level; the keys are %s", Printable(m.Entry.Key), near)
	case NoValue:
		text = fmt.Sprintf("value %q of %s: matches no value at this level; the values are %s", Printable(m.Entry.Value), Printable(m.Entry.Key), near)
	case TooLong:
		text = fmt.Sprintf("the descriptor has the further entry %s, for which the configuration has no key", Printable(m.Entry.Key))
	case TooShort:
		text = "no limit at this level; a limit exists further down, under " + near
	case Unlimited:
		text = "no limit is set here"
	}
	if m.Shorter > 0 {
		text += fmt.Sprintf(". A descriptor of the first %s alone would match a limit", entriesText(m.Shorter))
	}
	return text
}

func entriesText(n int) string {
	if n == 1 {
		return "entry"
	}
	return fmt.Sprintf("%d entries", n)
}

// Explain matches entries as Match does, and describes each step, or why no limit applies.
func (t *Tree) Explain(entries []Entry) Explanation {
	var x Explanation
	at, shorter := &t.root, 0
	for i := range entries {
		e := &entries[i]
		node := at.match(e)
		if node == nil {
			x.Node, x.Miss = nil, at.miss(i, e)
			x.Miss.Shorter = shorter
			return x
		}
		x.Steps = append(x.Steps, at.step(e, node))
		x.Node, at = node, &node.next
		if len(node.Policies) > 0 {
			shorter = i + 1
		}
	}
	if x.Node == nil || len(x.Node.Policies) == 0 {
		x.Miss = at.ended(len(entries))
		x.Miss.Shorter = shorter
	}
	return x
}

type matched struct {
	Pattern
	node *Node
}

// matching lists all patterns that match e, in order of precedence.
func (at *level) matching(e *Entry) []matched {
	var all []matched
	add := func(p Pattern, node *Node) { all = append(all, matched{p, node}) }
	t := at.tables()
	v := t.keys.get(e.Key)
	if v == nil {
		v = newValues()
	}
	if node := v.exact.get(e.Value); node != nil {
		add(Pattern{Key: e.Key, How: Exact, Text: e.Value}, node)
	}
	for _, n := range v.prefix.lengths {
		if n <= len(e.Value) && v.prefix.nodes[e.Value[:n]] != nil {
			add(Pattern{Key: e.Key, How: HasPrefix, Text: e.Value[:n]}, v.prefix.nodes[e.Value[:n]])
		}
	}
	for _, n := range v.suffix.lengths {
		if n > len(e.Value) {
			continue
		}
		if end := e.Value[len(e.Value)-n:]; v.suffix.nodes[end] != nil {
			add(Pattern{Key: e.Key, How: HasSuffix, Text: end}, v.suffix.nodes[end])
		}
	}
	var wild []wildcard
	for _, w := range v.wild {
		if w.matches(e.Value) {
			wild = append(wild, w)
		}
	}
	for _, w := range t.loose {
		if glob(w.Text, e.Key, e.Value) {
			wild = append(wild, w)
		}
	}
	slices.SortFunc(wild, func(a, b wildcard) int { return cmp.Compare(a.order, b.order) })
	for _, w := range wild {
		add(w.Pattern, w.node)
	}
	if v.open != nil {
		add(Pattern{Key: e.Key, How: Any}, v.open)
	}
	return all
}

func (at *level) step(e *Entry, node *Node) Step {
	s := Step{Entry: *e}
	for _, p := range at.matching(e) {
		if p.node == node {
			s.Pattern, s.How = p.Shown(), p.How
		} else {
			s.Over = append(s.Over, p.Shown())
		}
	}
	return s
}

func (at *level) miss(i int, e *Entry) *Miss {
	m := &Miss{At: i, Entry: *e}
	t := at.tables()
	v := t.keys.get(e.Key)
	switch {
	case v != nil:
		m.Reason = NoValue
		m.near(e.Value, v.names())
	case t.keys.value != nil || len(t.loose) > 0:
		m.Reason = NoKey
		m.near(e.Key, t.names())
	default:
		m.Reason = TooLong
	}
	return m
}

// ended explains why no limit applies to a descriptor of n entries, all of which matched. at is the level below the
// last entry.
func (at *level) ended(n int) *Miss {
	m := &Miss{Reason: TooShort, At: n}
	var below []string
	at.walk("", func(path string, node *Node) {
		if len(node.Policies) > 0 {
			below = append(below, path)
		}
	})
	if len(below) == 0 {
		m.Reason = Unlimited
		return m
	}
	depth := func(path string) int { return strings.Count(path, ",") }
	slices.SortFunc(below, func(a, b string) int {
		return cmp.Or(cmp.Compare(depth(a), depth(b)), cmp.Compare(a, b))
	})
	m.cut(below)
	return m
}

// walk calls visit for all nodes below the level. above is the text of the patterns that lead to the level. The
// argument path of visit also has the patterns from the level to the node.
func (at *level) walk(above string, visit func(path string, node *Node)) {
	enter := func(p Pattern, node *Node) {
		name := p.Shown()
		visit(above+name, node)
		node.next.walk(above+name+",", visit)
	}
	t := at.tables()
	for key, v := range t.keys.all() {
		v.patterns(key, enter)
		if v.open != nil {
			enter(Pattern{Key: key, How: Any}, v.open)
		}
	}
	for _, w := range t.loose {
		enter(w.Pattern, w.node)
	}
}

// patterns calls visit for each pattern of key, except the pattern that matches every value.
func (v *values) patterns(key string, visit func(Pattern, *Node)) {
	for value, node := range v.exact.all() {
		visit(Pattern{Key: key, How: Exact, Text: value}, node)
	}
	for text, node := range v.prefix.nodes {
		visit(Pattern{Key: key, How: HasPrefix, Text: text}, node)
	}
	for text, node := range v.suffix.nodes {
		visit(Pattern{Key: key, How: HasSuffix, Text: text}, node)
	}
	for _, w := range v.wild {
		visit(w.Pattern, w.node)
	}
}

func (v *values) names() []string {
	var names []string
	v.patterns("", func(p Pattern, _ *Node) { names = append(names, p.value()) })
	return names
}

func (t *tables) names() []string {
	var names []string
	for key := range t.keys.all() {
		names = append(names, Printable(key))
	}
	for _, w := range t.loose {
		names = append(names, w.Shown())
	}
	return names
}

// near sets m.Near to the names that are most similar to text, and m.More to the number of the others. The names must be
// printable. near sorts them.
func (m *Miss) near(text string, names []string) {
	text = Printable(text)
	far := make(map[string]int, len(names))
	for _, name := range names {
		far[name] = distance(text, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(far[a], far[b]), cmp.Compare(a, b))
	})
	m.cut(names)
}

func (m *Miss) cut(names []string) {
	n := min(len(names), maxNear)
	m.Near, m.More = names[:n], len(names)-n
}

// distance returns the number of insertions, deletions and changes of bytes that turn a into b (Levenshtein
// distance).
func distance(a, b string) int {
	row := make([]int, len(b)+1) // row[j] is the distance between the processed part of a and the first j bytes of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
