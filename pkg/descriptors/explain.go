package descriptors

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/spelling"
)

// Explanation describes step by step how Match treats a descriptor.
type Explanation[T any] struct {
	// Steps are the entries that matched a pattern, with their patterns, in order.
	Steps []Step
	// Node is the node at which the descriptor ended. It is nil if an entry matched no pattern, or if there is no entry.
	Node *Node[T]
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

// Explain matches entries as Match does, and describes each step, or why no limit applies. found reports whether a
// limit applies at a node.
func (t *Tree[T]) Explain(entries []Entry, found func(*Node[T]) bool) Explanation[T] {
	var x Explanation[T]
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
		if found(node) {
			shorter = i + 1
		}
	}
	if x.Node == nil || !found(x.Node) {
		x.Miss = at.ended(len(entries), found)
		x.Miss.Shorter = shorter
	}
	return x
}

// step describes e, which leads to node, and the other patterns that match e, in order of precedence.
func (at *level[T]) step(e *Entry, node *Node[T]) Step {
	all := slices.DeleteFunc(at.branches(), func(b branch[T]) bool { return !b.matchesEntry(e) })
	wild := func(b branch[T]) bool { return b.How == Wildcard || b.How == Regex }
	slices.SortFunc(all, func(a, b branch[T]) int {
		if wild(a) && wild(b) {
			return cmp.Compare(a.order, b.order)
		}
		return cmp.Or(cmp.Compare(a.How, b.How), cmp.Compare(len(b.Text), len(a.Text)))
	})
	s := Step{Entry: *e}
	for _, b := range all {
		if b.node == node {
			s.Pattern, s.How = b.Shown(), b.How
		} else {
			s.Over = append(s.Over, b.Shown())
		}
	}
	return s
}

func (b *branch[T]) matchesEntry(e *Entry) bool {
	switch {
	case b.Key == "":
		return joined{e.Key, e.Value, true}.matches(b.Text)
	case b.Key != e.Key:
		return false
	case b.How == Exact:
		return e.Value == b.Text
	case b.How == HasPrefix:
		return strings.HasPrefix(e.Value, b.Text)
	case b.How == HasSuffix:
		return strings.HasSuffix(e.Value, b.Text)
	default:
		return b.How == Any || b.matches(e.Value)
	}
}

func (at *level[T]) miss(i int, e *Entry) *Miss {
	m := &Miss{Reason: TooLong, At: i, Entry: *e}
	var keys, values []string
	for _, b := range at.branches() {
		switch {
		case b.Key == "":
			keys = append(keys, b.Shown())
		case b.Key == e.Key:
			values = append(values, b.value())
		default:
			keys = append(keys, Printable(b.Key))
		}
	}
	switch {
	case len(values) > 0:
		m.Reason = NoValue
		m.near(e.Value, values)
	case len(keys) > 0:
		m.Reason = NoKey
		m.near(e.Key, slices.Compact(slices.Sorted(slices.Values(keys))))
	}
	return m
}

// ended explains why no limit applies to a descriptor of n entries, all of which matched. at is the level below the
// last entry.
func (at *level[T]) ended(n int, found func(*Node[T]) bool) *Miss {
	m := &Miss{Reason: TooShort, At: n}
	depths := map[string]int{}
	at.all(nil, func(path []Pattern, node *Node[T]) bool {
		if found(node) {
			shown := make([]string, len(path))
			for i := range path {
				shown[i] = path[i].Shown()
			}
			depths[strings.Join(shown, ",")] = len(path)
		}
		return true
	})
	if len(depths) == 0 {
		m.Reason = Unlimited
		return m
	}
	m.cut(slices.SortedFunc(maps.Keys(depths), func(a, b string) int {
		return cmp.Or(cmp.Compare(depths[a], depths[b]), cmp.Compare(a, b))
	}))
	return m
}

// near sets m.Near to the names that are most similar to text, and m.More to the number of the others. The names must be
// printable. near sorts them.
func (m *Miss) near(text string, names []string) {
	text = Printable(text)
	far := make(map[string]int, len(names))
	for _, name := range names {
		far[name] = spelling.Distance(text, name)
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
