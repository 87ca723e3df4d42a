package descriptors

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// treeOf returns a Tree of paths. A path is a list of patterns (see patternOf) with commas between them. Paths
// that end in "!" find their text.
func treeOf(tb fataler, paths ...string) *Tree[string] {
	t := &Tree[string]{}
	for _, path := range paths {
		path, limited := strings.CutSuffix(path, "!")
		var node *Node[string]
		for part := range strings.SplitSeq(path, ",") {
			node, _ = t.Add(node, patternOf(tb, part))
		}
		if limited {
			node.Found = path
		}
	}
	return t
}

func found(n *Node[string]) bool { return n.Found != "" }

func TestExplainShowsStepsAndMisses(t *testing.T) {
	tree := treeOf(t, "user!", "path=/login!", "path=/login,address!", "path=/signup", "path=/static/*!", "path=*.png!", "path!",
		"country,address=1*,port!", "file^=/a/!", "file^=/a/b!", "file$=.png!", "file~=/x/[0-9]+!", "country,port!", "any*!", "dead,end", "dead=*!", "dead=x")
	for _, test := range []struct{ descriptor, steps, miss string }{
		{"user=bob", "user any", ""},
		{"path=/login", "path=/login exact over path", ""},
		{"path=/static/a.png", "path=/static/* wildcard over path=*.png, path", ""},
		{"path=/other", "path any", ""},
		{"path=/login,address=::1", "path=/login exact over path; address any", ""},
		{"anyone=x", "any* wildcard", ""},
		{"usr=bob", "", "key usr: not configured at this level; the keys are user, any*, dead, file, path and 1 more"},
		{"file=/a/b.png", "file=/a/b* prefix over file=/a/*, file=*.png", ""},
		{"file=/x/1.png", "file=*.png suffix", ""},
		{"file=/x/12", "file~/x/[0-9]+ regex", ""},
		{"file=/x/y", "", `value "/x/y" of file: matches no value at this level; the values are /a/*, /a/b*, *.png, ~/x/[0-9]+`},
		{"country=nl,port=1", "country any; port any", ""},
		{"country=nl,prot=1", "country any", "key prot: not configured at this level; the keys are port, address"},
		{"country=nl,address=9", "country any", `value "9" of address: matches no value at this level; the values are 1*`},
		{"country=nl,address=12", "country any; address=1* wildcard", "no limit at this level; a limit exists further down, under port"},
		{"country=nl", "country any", "no limit at this level; a limit exists further down, under port, address=1*,port"},
		{"path=/signup", "path=/signup exact over path", "no limit is set here"},
		{"path=/signup,x=y", "path=/signup exact over path", "the descriptor has the further entry x, for which the configuration has no key"},
		{"user=bob,x=y", "user any", "the descriptor has the further entry x, for which the configuration has no key. A descriptor of the first entry alone would match a limit"},
		{"path=/login,address=1,x=y", "path=/login exact over path; address any",
			"the descriptor has the further entry x, for which the configuration has no key. A descriptor of the first 2 entries alone would match a limit"},
	} {
		entries, err := Parse(test.descriptor)
		if err != nil {
			t.Fatal(err)
		}
		x := tree.Explain(entries, found)
		var steps []string
		for _, s := range x.Steps {
			text := s.Pattern + " " + s.How.String()
			if len(s.Over) > 0 {
				text += " over " + strings.Join(s.Over, ", ")
			}
			steps = append(steps, text)
		}
		if got := strings.Join(steps, "; "); got != test.steps {
			t.Errorf("%s: steps %q, want %q", test.descriptor, got, test.steps)
		}
		miss := ""
		if x.Miss != nil {
			miss = x.Miss.String()
		}
		if miss != test.miss {
			t.Errorf("%s:\ngot  %s\nwant %s", test.descriptor, miss, test.miss)
		}
	}
}

func TestExplainAgreesWithMatch(t *testing.T) {
	key := rapid.SampledFrom([]string{"a", "ab", "b"})
	value := rapid.SampledFrom([]string{"x", "xy", "y", "xyx"})
	pattern := rapid.Custom(func(t *rapid.T) string {
		k := rapid.SampledFrom([]string{"a", "ab", "b", "a*"}).Draw(t, "key")
		if k == "a*" {
			return k
		}
		return k + rapid.SampledFrom([]string{"", "", "=x", "=xy", "=x*", "=*y*", "^=x", "$=y", "~=x+"}).Draw(t, "value")
	})
	rapid.Check(t, func(t *rapid.T) {
		var paths []string
		for range rapid.IntRange(0, 8).Draw(t, "paths") {
			path := strings.Join(rapid.SliceOfN(pattern, 1, 3).Draw(t, "path"), ",")
			if rapid.Bool().Draw(t, "limited") {
				path += "!"
			}
			paths = append(paths, path)
		}
		tree := treeOf(t, paths...)
		var entries []Entry
		for range rapid.IntRange(0, 4).Draw(t, "entries") {
			entries = append(entries, Entry{key.Draw(t, "key"), value.Draw(t, "value")})
		}
		x, node := tree.Explain(entries, found), tree.Match(entries)
		limited := node != nil && found(node)
		switch {
		case x.Node != node:
			t.Fatalf("%v, %v: Explain and Match return different nodes; want the same", paths, entries)
		case limited != (x.Miss == nil):
			t.Fatalf("%v, %v: has a limit: %v, the miss is %v; want a miss exactly if there is no limit", paths, entries, limited, x.Miss)
		case node != nil && len(x.Steps) != len(entries):
			t.Fatalf("%v, %v: %d steps, want %d", paths, entries, len(x.Steps), len(entries))
		}
		for _, s := range x.Steps {
			if s.Pattern == "" {
				t.Fatalf("%v, %v: got steps %v; want a pattern in each", paths, entries, x.Steps)
			}
		}
		if x.Miss == nil {
			return
		}
		if n := x.Miss.Shorter; n > 0 {
			if shorter := tree.Match(entries[:n]); n >= len(entries) || shorter == nil || !found(shorter) {
				t.Fatalf("%v, %v: Shorter is %d; want fewer than all entries, and a limit for them", paths, entries, n)
			}
		}
	})
}

func TestShorterDescriptorsThatMatch(t *testing.T) {
	tree := grow(t, "a", "a,b,c", "a,b,c,d,e")
	for text, want := range map[string]int{"a=1": 0, "a=1,b=1": 1, "a=1,x=1": 1, "a=1,b=1,c=1": 0, "a=1,b=1,c=1,d=1": 3, "a=1,b=1,c=1,x=1": 3, "x=1": 0, "a=1,b=1,x=1": 1} {
		entries, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		if x := tree.Explain(entries, found); x.Miss != nil {
			got = x.Miss.Shorter
		}
		if got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
	short := grow(t, "key\n,x")
	if x := short.Explain([]Entry{{"key\t", "1"}}, found); x.Miss == nil || x.Miss.Reason != NoKey || !slices.Equal(x.Miss.Near, []string{`key\n`}) {
		t.Errorf("got %+v; want no such key, near %q", x.Miss, `key\n`)
	}
	if x := grow(t, "a", "k_*").Explain([]Entry{{"b", "1"}}, found); x.Miss == nil || x.Miss.Reason != NoKey || len(x.Miss.Near) != 2 {
		t.Errorf("got %+v; want no such key, near 2 others", x.Miss)
	}
}

func TestPatternsThatTakePrecedence(t *testing.T) {
	tree := grow(t, "a", "a^=x", "a^=xy", "a$=z", "a_*", "a=x*y*", "a~=x.*", "a=xyz", "a^=longer than the value", "a$=longer than the value")
	x := tree.Explain([]Entry{{"a", "xyz"}}, found)
	if len(x.Steps) != 1 || x.Steps[0].Pattern != "a=xyz" || x.Steps[0].How != Exact || !slices.Equal(x.Steps[0].Over, []string{"a=xy*", "a=x*", "a=*z", "a_*", "a=x*y*", "a~x.*", "a"}) {
		t.Errorf("got %+v; want a=xyz, over the other patterns that match xyz", x.Steps)
	}
}
