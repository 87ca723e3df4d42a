package diff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const (
	// maxMoved bounds the descriptors that are listed.
	maxMoved = 1000
	// maxTried bounds the descriptors that are tried below a place that only one configuration has.
	maxTried = 50
)

// place is a node of a tree: the patterns on the path to it, and the entries of an example descriptor that leads to it if
// all patterns are sampled.
type place struct {
	patterns []descriptors.Pattern
	entries  []descriptors.Entry
	sampled  bool
	node     *limiter.Node
}

func makePlace(patterns []descriptors.Pattern, node *limiter.Node) place {
	p := place{patterns: patterns, sampled: true, node: node}
	for i := range patterns {
		e, ok := patterns[i].Sample()
		p.entries, p.sampled = append(p.entries, e), p.sampled && ok
	}
	return p
}

// placesOf lists the places of a tree, those without an example descriptor by their ids too, and by the names of the places
// above them those that are tried in the order of their declaration.
func placesOf(t *limiter.Tree) (all []place, others map[string]place, inOrder map[string][]string) {
	others, inOrder = map[string]place{}, map[string][]string{}
	for patterns, node := range t.All() {
		p := makePlace(patterns, node)
		if all = append(all, p); !p.sampled {
			others[p.id()] = p
		}
		if last := len(patterns) - 1; patterns[last].InOrder() {
			above := (&place{patterns: patterns[:last]}).name()
			inOrder[above] = append(inOrder[above], patterns[last].Shown())
		}
	}
	return all, others, inOrder
}

func (p *place) name() string {
	var shown []string
	for i := range p.patterns {
		shown = append(shown, p.patterns[i].Shown())
	}
	return strings.Join(shown, ",")
}

// id is equal for places with equal descriptors. A name is shortened, so it may be equal for others too.
func (p *place) id() string {
	id := ""
	for i := range p.patterns {
		e, ok := p.patterns[i].Sample()
		if !ok {
			e.Value = p.patterns[i].Text
		}
		id += fmt.Sprintf("%t %q %q,", ok, p.patterns[i].Key, e.Value)
	}
	return id
}

func (p *place) keys(n int) string {
	var keys []string
	for _, e := range p.entries[:n] {
		keys = append(keys, e.Key)
	}
	return strings.Join(keys, "\x00")
}

// moved lists descriptors that now match other limits or have another max_override. It tries an example descriptor for
// each place in either configuration.
//
// These examples are not enough if only one configuration has a place such as user=a. That place takes precedence over
// user=*, so the descriptor user=a,path=x no longer matches the place user=*,path=x of the other configuration. moved
// therefore also tries user=a with the remaining entries of each longer place of the other configuration.
//
// Places without an example, such as those below a regular expression, are compared with themselves.
func moved(domain string, was, is *limiter.Tree) (all []Change) {
	before, othersBefore, orderBefore := placesOf(was)
	after, othersAfter, orderAfter := placesOf(is)
	domain = descriptors.Printable(domain) + ": "
	add := func(kind Kind, name string, details []string) {
		if len(details) > 0 && len(all) < maxMoved {
			all = append(all, Change{Kind: kind, What: "descriptor", Name: domain + name, Details: details, Fresh: slices.Contains(details, fresh)})
		}
	}
	for _, id := range names(othersBefore, othersAfter) {
		switch old, new := othersBefore[id], othersAfter[id]; {
		case old.node == nil:
			add(Added, new.name(), []string{"matches " + limitList(limitsAt(new.node))})
		case new.node == nil:
			add(Removed, old.name(), []string{"matched " + limitList(limitsAt(old.node))})
		default:
			add(Changed, new.name(), compared(old.node, new.node))
		}
	}
	for _, above := range names(orderBefore, orderAfter) {
		old, new := common(orderBefore[above], orderAfter[above]), common(orderAfter[above], orderBefore[above])
		if !slices.Equal(old, new) {
			add(Changed, strings.TrimPrefix(above+","+new[0], ","),
				differences(part{"patterns are tried in this order", strings.Join(old, ", "), strings.Join(new, ", ")}))
		}
	}
	tried := map[string]bool{}
	try := func(p place) {
		if id := p.id(); p.sampled && !tried[id] && len(all) < maxMoved {
			tried[id] = true
			add(Changed, p.name(), compared(was.Match(p.entries), is.Match(p.entries)))
		}
	}
	for _, p := range slices.Concat(before, after) {
		try(p)
	}
	extended := slices.Concat(combined(only(after, before), before), combined(only(before, after), after))
	for _, c := range extended {
		try(c)
	}
	extendedTwice := combined(extended[:min(len(extended), maxMoved)], slices.Concat(before, after))
	for _, c := range extendedTwice {
		try(c)
	}
	slices.SortStableFunc(all, func(a, b Change) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func only(a, b []place) (all []place) {
	has := map[string]bool{}
	for _, p := range b {
		has[p.id()] = true
	}
	for _, p := range a {
		if !has[p.id()] {
			all = append(all, p)
		}
	}
	return all
}

// combined extends each place in short by the remaining patterns of those places in long that begin with the same keys, if
// the result is sampled. It uses at most maxTried places in long for one sequence of keys.
func combined(short, long []place) (all []place) {
	byKeys := map[string][]place{}
	for _, l := range long {
		for n := 1; n < len(l.entries); n++ {
			if keys := l.keys(n); len(byKeys[keys]) < maxTried {
				byKeys[keys] = append(byKeys[keys], l)
			}
		}
	}
	for _, s := range short {
		n := len(s.entries)
		keys := s.keys(n)
		starred := strings.TrimSuffix(keys, s.entries[n-1].Key) // a pattern with a "*" in the key has the Key ""
		for _, l := range slices.Concat(byKeys[keys], byKeys[starred]) {
			if p := makePlace(slices.Concat(s.patterns, l.patterns[n:]), nil); p.sampled {
				all = append(all, p)
			}
		}
	}
	return all
}

// compared describes the differences of what a descriptor finds in two trees. A node is nil if the descriptor matches none.
func compared(was, is *limiter.Node) (details []string) {
	if old, new := limitsAt(was), limitsAt(is); !slices.Equal(old, new) {
		details = append(details, fmt.Sprintf("matched %s, now matches %s", limitList(old), limitList(new)))
	}
	details = append(details, differences(part{"max_override", boundAt(was), boundAt(is)})...)
	if was == nil || is == nil {
		return details
	}
	for _, a := range was.Found.Policies {
		for _, b := range is.Found.Policies {
			switch {
			case title(a) != title(b):
			case descriptors.Limit(a.Prefix) != descriptors.Limit(b.Prefix):
				details = append(details, title(b)+" is another limit than before", fresh)
			case placeOf(a) != placeOf(b): // Limits compares the others
				differ, isFresh := facts(a, b)
				for _, d := range differ {
					details = append(details, title(b)+": "+d)
				}
				if isFresh {
					details = append(details, fresh)
				}
			}
		}
	}
	return details
}

func limitsAt(node *limiter.Node) (names []string) {
	if node != nil {
		for _, p := range node.Found.Policies {
			names = append(names, title(p))
		}
	}
	slices.Sort(names)
	return names
}

func boundAt(node *limiter.Node) string {
	if node != nil {
		return boundOf(node.Found.MaxOverride)
	}
	return boundOf(nil)
}

func limitList(names []string) string {
	if len(names) == 0 {
		return "no limit"
	}
	return strings.Join(names, " and ")
}
