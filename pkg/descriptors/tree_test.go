package descriptors

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// patternOf parses a pattern as written in these tests: key, key=value, key^=prefix, key$=suffix or
// key~=expression.
func patternOf(tb fataler, text string) Pattern {
	tb.Helper()
	key, value, _ := strings.Cut(text, "=")
	if name, is := strings.CutSuffix(key, "~"); is {
		p, err := RegexPattern(name, value)
		if err != nil {
			tb.Fatal(err)
		}
		return p
	}
	if name, is := strings.CutSuffix(key, "^"); is {
		return Pattern{Key: name, How: HasPrefix, Text: value}
	}
	if name, is := strings.CutSuffix(key, "$"); is {
		return Pattern{Key: name, How: HasSuffix, Text: value}
	}
	return ValuePattern(key, value)
}

// fataler is implemented by testing.TB and rapid.T.
type fataler interface {
	Helper()
	Fatal(args ...any)
}

// grow returns a tree of patterns. Each is a list of levels in the form of patternOf, with commas between them.
// The node of the last level finds the list.
func grow(tb testing.TB, patterns ...string) *Tree[string] {
	tb.Helper()
	tree := &Tree[string]{}
	nodes := map[string]*Node[string]{}
	for _, p := range patterns {
		parent, path := (*Node[string])(nil), ""
		for step := range strings.SplitSeq(p, ",") {
			path += "," + step
			node, added := tree.Add(parent, patternOf(tb, step))
			if known := nodes[path]; (known == nil) != added || known != nil && known != node {
				tb.Fatalf("%s: Add returned added %t; want %t, and the same node if false", path, added, known == nil)
			}
			nodes[path], parent = node, node
		}
		if parent.Found == "" {
			parent.Found = p
		}
	}
	return tree
}

func matchedText(tb testing.TB, tree *Tree[string], descriptor string) string {
	tb.Helper()
	entries, err := Parse(descriptor)
	if err != nil {
		tb.Fatal(err)
	}
	node := tree.Match(entries)
	switch {
	case node == nil:
		return "nothing"
	case node.Found == "":
		return "no limit"
	default:
		return node.Found
	}
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		what     string
		patterns []string
		want     map[string]string // descriptor -> the text that it finds
	}{
		{"exact over wildcard over open, whatever the order", []string{"k", "k=a*", "k=ab"}, map[string]string{
			"k=ab": "k=ab", "k=ac": "k=a*", "k=b": "k", "k=": "k", "j=ab": "nothing",
		}},
		{"the first wildcard, not the longest", []string{"k=*", "k=a*", "k=*b*c"}, map[string]string{"k=abc": "k=*", "k=": "k=*"}},
		{"wildcards anywhere", []string{"k=/api/*/items", "k=*.png", "k=a*b*c*"}, map[string]string{
			"k=/api/7/items": "k=/api/*/items", "k=/api//items": "k=/api/*/items", "k=/api/items": "nothing", "k=x.png": "k=*.png",
			"k=.png": "k=*.png", "k=x.png2": "nothing", "k=abc": "k=a*b*c*", "k=axxbxxcxx": "k=a*b*c*", "k=acb": "nothing",
		}},
		{"no backtracking", []string{"k=a,x", "k=*,y", "k,z"}, map[string]string{
			"k=a,x=1": "k=a,x", "k=a,y=1": "nothing", "k=b,y=1": "k=*,y", "k=b,z=1": "nothing",
		}},
		{"an exact value without a limit whitelists", []string{"k", "k=free,deeper"}, map[string]string{"k=free": "no limit", "k=other": "k"}},
		{"a limit is matched at its own depth only", []string{"a", "a,b,c"}, map[string]string{
			"a=1": "a", "a=1,b=1": "no limit", "a=1,b=1,c=1": "a,b,c", "a=1,b=1,c=1,d=1": "nothing", "b=1": "nothing",
		}},
		{"a key with a wildcard is matched as key_value", []string{"k*", "x*=b*"}, map[string]string{
			"k=1": "k*", "kk=1": "k*", "x=b": "x*=b*", "xy=bc": "x*=b*", "x=a_b": "x*=b*", "x=a": "nothing", "y=x_b": "nothing",
		}},
		{"wildcards of keys and of values, in the order of declaration", []string{"k=a*", "k*", "j*", "j=a*", "j=ab"}, map[string]string{
			"k=ab": "k=a*", "k=b": "k*", "j=ax": "j*", "j=ab": "j=ab",
		}},
		{"keys without a * and their values are compared separately, not as key_value", []string{"a_b", "a=b_c", "a_b=c"}, map[string]string{
			"a=b": "nothing", "a=b_c": "a=b_c", "a_b=c": "a_b=c", "a_b=x": "a_b", "a_b_c=": "nothing",
		}},
		{"an exact value, the longest prefix, the longest suffix, patterns in order, any",
			[]string{"k", "k~=.*", "k=*a*", "k$=c", "k$=bc", "k^=a", "k^=ab", "k=abc"}, map[string]string{
				"k=abc": "k=abc", "k=abcd": "k^=ab", "k=ab": "k^=ab", "k=aa": "k^=a", "k=xbc": "k$=bc", "k=xc": "k$=c", "k=xax": "k~=.*", "k=": "k~=.*",
			}},
		{"expressions and wildcards in the order of declaration", []string{"k=a*", "k~=a[0-9]+", "k~=b[0-9]+", "k=b*"}, map[string]string{
			"k=a1": "k=a*", "k=b1": "k~=b[0-9]+", "k=bb": "k=b*",
		}},
		{"an expression matches the whole value", []string{"k~=a|b+", "k~=(?m)^x$"}, map[string]string{
			"k=a": "k~=a|b+", "k=bb": "k~=a|b+", "k=ax": "nothing", "k=xbb": "nothing", "k=x": "k~=(?m)^x$", "k=x\nx": "nothing", "k=x\n": "nothing",
		}},
		{"patterns match values that are not valid UTF-8", []string{"k~=/u/.+", "j~=[^/]*", "p^=/a", "s$=.png"}, map[string]string{
			"k=/u/\xff": "k~=/u/.+", "k=/u/\n": "k~=/u/.+", "k=/u/\x00\r": "k~=/u/.+", "j=\xc3\x28": "j~=[^/]*",
			"p=/a\xff": "p^=/a", "s=\xff.png": "s$=.png", "s=.png": "s$=.png", "s=png": "nothing",
		}},
		{"a * in a prefix or a suffix matches only a *", []string{"k^=a*", "k$=*b"}, map[string]string{"k=a*x": "k^=a*", "k=ax": "nothing", "k=x*b": "k$=*b", "k=xb": "nothing"}},
		{"an entry without a key", []string{"a*", "b"}, map[string]string{"b=1": "b"}},
	} {
		tree := grow(t, c.patterns...)
		for descriptor, want := range c.want {
			if got := matchedText(t, tree, descriptor); got != want {
				t.Errorf("%s: %s matches %s, want %s", c.what, descriptor, got, want)
			}
		}
	}
	if node := grow(t, "a*").Match([]Entry{{"", "abc"}}); node != nil {
		t.Error("the key a* matches an entry with an empty key; want no match")
	}
	if node := grow(t, "a").Match(nil); node != nil {
		t.Error("a descriptor without entries matches a node; want no match")
	}
}

// matches is the reference implementation of joined.matches.
func matches(pattern, text string) bool {
	switch {
	case pattern == "":
		return text == ""
	case pattern[0] == '*':
		return matches(pattern[1:], text) || text != "" && matches(pattern, text[1:])
	default:
		return text != "" && pattern[0] == text[0] && matches(pattern[1:], text[1:])
	}
}

func letters(of string, most int) *rapid.Generator[string] {
	return rapid.StringOfN(rapid.RuneFrom([]rune(of)), 0, most, -1)
}

func TestGlobAgreesWithItsDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern, key, value := letters("ab_*", 8).Draw(t, "pattern"), letters("ab_", 4).Draw(t, "key"), letters("ab_*", 8).Draw(t, "value")
		if got, want := (joined{value: value}).matches(pattern), matches(pattern, value); got != want {
			t.Errorf("%q on %q: %t, want %t", pattern, value, got, want)
		}
		if got, want := (joined{key, value, true}).matches(pattern), matches(pattern, key+"_"+value); got != want {
			t.Errorf("%q on %q_%q: %t, want %t", pattern, key, value, got, want)
		}
	})
}

// plain is the reference implementation of Tree, without regard for speed.
type plain struct {
	Pattern
	found string
	below []*plain
}

func (p *plain) match(entries []Entry) string {
	if len(entries) == 0 {
		return p.found
	}
	e := entries[0]
	is := func(c *plain, how How) bool { return c.How == how && c.Key == e.Key && !strings.Contains(c.Key, "*") }
	var best *plain
	rules := []func(c *plain) bool{
		func(c *plain) bool { return is(c, Exact) && c.Text == e.Value },
		func(c *plain) bool {
			return is(c, HasPrefix) && strings.HasPrefix(e.Value, c.Text) && (best == nil || len(c.Text) > len(best.Text))
		},
		func(c *plain) bool {
			return is(c, HasSuffix) && strings.HasSuffix(e.Value, c.Text) && (best == nil || len(c.Text) > len(best.Text))
		},
		func(c *plain) bool {
			switch {
			case best != nil:
				return false
			case strings.Contains(c.Key, "*") && c.Text == "":
				return matches(c.Key, e.Key+"_"+e.Value)
			case strings.Contains(c.Key, "*"):
				return matches(c.Key+"_"+c.Text, e.Key+"_"+e.Value)
			case is(c, Regex):
				return c.regex.FindString(e.Value) == e.Value && c.regex.MatchString(e.Value)
			default:
				return is(c, Wildcard) && matches(c.Text, e.Value)
			}
		},
		func(c *plain) bool { return is(c, Any) },
	}
	for _, rule := range rules {
		for _, c := range p.below {
			if rule(c) {
				best = c
			}
		}
		if best != nil {
			return best.match(entries[1:])
		}
	}
	return ""
}

func TestMatchAgreesWithAPlainTree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tree, reference := &Tree[string]{}, &plain{}
		count := 0
		var fill func(parent *Node[string], p *plain, depth int)
		fill = func(parent *Node[string], above *plain, depth int) {
			for range rapid.IntRange(0, 5).Draw(t, "children") {
				key := rapid.SampledFrom([]string{"a", "b", "a_b", "a*", "*", "b*a"}).Draw(t, "key")
				p := patternOf(t, key+rapid.SampledFrom([]string{"", "=a", "=ab", "=*", "=a*", "=*b", "=a*b"}).Draw(t, "value"))
				if !strings.Contains(key, "*") && rapid.Bool().Draw(t, "otherwise") {
					p = patternOf(t, key+rapid.SampledFrom([]string{"^=a", "^=ab", "$=b", "$=ab", "~=a+", "~=(a|b).*"}).Draw(t, "pattern"))
				}
				node, added := tree.Add(parent, p)
				if !added {
					continue
				}
				count++
				child := &plain{Pattern: p, found: fmt.Sprint(count)}
				node.Found = child.found
				above.below = append(above.below, child)
				if depth > 1 {
					fill(node, child, depth-1)
				}
			}
		}
		fill(nil, reference, 3)
		for range 20 {
			entries := make([]Entry, rapid.IntRange(1, 4).Draw(t, "entries"))
			for i := range entries {
				entries[i].Key = rapid.SampledFrom([]string{"a", "b", "a_b", "ab", "ba", ""}).Draw(t, "key")
				entries[i].Value = letters("ab_", 3).Draw(t, "value")
			}
			got := ""
			if node := tree.Match(entries); node != nil {
				got = node.Found
			}
			if want := reference.match(entries); got != want {
				t.Fatalf("%v finds %s, want %s", entries, got, want)
			}
		}
	})
}

func TestMatchAllocatesNothing(t *testing.T) {
	tree := grow(t, "a=x,b=y*,c", "a=x,k*,c", "a", "p^=/a", "p^=/abc", "p$=.png", "p")
	for _, descriptor := range []string{"a=x,b=yes,c=1", "a=x,kk=1,c=1", "a=z", "p=/abd", "p=x.png", "p=x", "nothing=here"} {
		entries, err := Parse(descriptor)
		if err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(100, func() { tree.Match(entries) }); n > 0 {
			t.Errorf("%s: got %v allocations; want 0", descriptor, n)
		}
	}
}

func BenchmarkMatch(b *testing.B) {
	patterns := []string{"path=/static/*", "path=/api/*/items,user", "user", "tenant,path=*.png"}
	for i := range 1000 {
		patterns = append(patterns, fmt.Sprintf("user=u%d,path", i))
	}
	tree := grow(b, patterns...)
	for _, descriptor := range []string{"user=u500,path=/x", "path=/api/12345/items,user=bob", "user=bob", "nobody=knows"} {
		entries, err := Parse(descriptor)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(descriptor, func(b *testing.B) {
			for b.Loop() {
				tree.Match(entries)
			}
		})
	}
}

// "?" stands for an unknown value. CouldMatch compares only exact values, so with other patterns each value could
// match.
func TestCouldMatch(t *testing.T) {
	for _, c := range []struct {
		paths    string
		possible string
		want     bool
	}{
		{"a", "", false},
		{"a", "a=1", true}, {"a", "a=?", true}, {"a", "b=1", false}, {"a", "a=1,b=1", false},
		{"a=1", "a=1", true}, {"a=1", "a=2", false}, {"a=1", "a=?", true},
		{"a=1 a=2", "a=1", true}, {"a=1 a=2", "a=2", true}, {"a=1 a=2", "a=3", false}, {"a=1 a=2", "a=?", true}, {"a=1 b=2", "c=?", false},
		{"a=1,b=2", "a=1", false}, {"a=1,b=2", "a=1,b=2", true}, {"a=1,b=2", "a=?,b=2", true}, {"a=1,b=2", "a=2,b=2", false}, {"a=1,b=2", "a=1,b=3", false}, {"a=1,b=2", "a=1,b=2,c=3", false},
		{"a=1,b=2 a=1,c=3 a=2,d=4", "a=?,d=4", true}, {"a=1,b=2 a=1,c=3 a=2,d=4", "a=1,d=4", false},
		{"a^=x", "a=?", true}, {"a^=x", "a=y", true}, {"a^=x", "b=x", false}, {"a^=x,b", "a=x", false}, {"a^=x,b", "a=x,b=1", true},
		{"a$=x", "a=?", true}, {"a$=x", "b=?", false}, {"a$=x,b", "a=?", false}, {"a$=x,b", "a=?,b=?", true},
		{"a~=x+", "a=?", true}, {"a~=x+", "b=?", false}, {"a~=x+,b", "a=?", false}, {"a~=x+,b", "a=?,b=?", true},
		{"a=x*y*", "a=?", true}, {"a=x*y*", "a=1", true}, {"a=x*y*,b", "a=?", false}, {"a=x*y*,b", "a=?,c=?", false},
		{"a_*", "a_1=x", true}, {"a_*", "b=x", true}, {"a_*,b", "c=x", false}, {"a_*,b", "c=x,b=1", true},
	} {
		tree := grow(t, strings.Fields(c.paths)...)
		var entries []Possible
		for _, text := range strings.Split(c.possible, ",") {
			if key, value, is := strings.Cut(text, "="); is {
				entries = append(entries, Possible{Key: key, Value: value, Known: value != "?"})
			}
		}
		if got := tree.CouldMatch(entries, found); got != c.want {
			t.Errorf("%q of %q: %t, want %t", c.possible, c.paths, got, c.want)
		}
	}
}

func TestAPatternHasOneNode(t *testing.T) {
	for _, texts := range []string{"a a", "a=1 a=1", "a=1 a=2 a=1", "a a=1 a", "a b a b", "a^=p a^=p", "a$=s a^=p a$=s", "a~=x a~=y a~=x", "k_* k_* a k_*", "a=1 a a=1"} {
		tree, nodes := &Tree[string]{}, map[string]*Node[string]{}
		for _, text := range strings.Fields(texts) {
			node, added := tree.Add(nil, patternOf(t, text))
			if was := nodes[text]; added != (was == nil) || was != nil && was != node {
				t.Errorf("%s: %s is added: %t; want it added only the first time, and the same node later", texts, text, added)
			}
			nodes[text] = node
		}
		seen := map[*Node[string]]bool{}
		for text, node := range nodes {
			if seen[node] {
				t.Errorf("%s: %s has the node of another pattern", texts, text)
			}
			seen[node] = true
		}
	}
	tree := &Tree[string]{}
	empty, _ := tree.Add(nil, Pattern{Key: "a", How: Exact})
	if got := tree.Match([]Entry{{Key: "a", Value: "x"}}); got != nil {
		t.Error("a pattern for the empty value matches another value")
	}
	if got := tree.Match([]Entry{{Key: "a"}}); got != empty {
		t.Error("a pattern for the empty value does not match it")
	}
	if got := (&Tree[string]{}).Match([]Entry{{}}); got != nil {
		t.Error("an empty Tree matches an empty entry")
	}
}
