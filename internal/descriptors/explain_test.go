package descriptors

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// treeOf returns a Tree of paths. A path is a list of patterns (see patternOf) with commas between them. Paths
// that end in "!" have a limit.
func treeOf(tb fataler, paths ...string) *Tree {
	t := &Tree{}
	for _, path := range paths {
		path, limited := strings.CutSuffix(path, "!")
		var node *Node
		for part := range strings.SplitSeq(path, ",") {
			node, _ = t.Add(node, patternOf(tb, part))
		}
		if limited {
			node.Policies = append(node.Policies, &Policy{Name: path})
		}
	}
	return t
}

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
		x := tree.Explain(entries)
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

func TestNearestFirstAndAtMostFive(t *testing.T) {
	tree := treeOf(t, "path=/login!", "path=/logout", "path=/logs", "path=/a", "path=/b", "path=/lo*in/x", "path=/\xff")
	x := tree.Explain([]Entry{{"path", "/logn"}})
	const want = `value "/logn" of path: matches no value at this level; the values are /login, /logs, /logout, /\xff, /a and 2 more`
	if got := x.Miss.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
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
		x, node := tree.Explain(entries), tree.Match(entries)
		limited := node != nil && len(node.Policies) > 0
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
			if shorter := tree.Match(entries[:n]); n >= len(entries) || shorter == nil || len(shorter.Policies) == 0 {
				t.Fatalf("%v, %v: Shorter is %d; want fewer than all entries, and a limit for them", paths, entries, n)
			}
		}
	})
}

func TestWords(t *testing.T) {
	at := func(m algorithms.Micros) *algorithms.Micros { return &m }
	n := func(n int64) *int64 { return &n }
	const minute = 60 * algorithms.Second
	for want, spec := range map[string]algorithms.Spec{
		"token bucket: 10 per 1m, up to 10 at once":                                        {Kind: algorithms.TokenBucket, Rate: 10, Period: minute},
		"token bucket: 10 per 1m, up to 20 at once; starts with 5":                         {Kind: algorithms.TokenBucket, Rate: 10, Period: minute, Capacity: n(20), Initial: n(5)},
		"token bucket: 10 per 1m, up to 10 at once; reservations up to 8 ahead":            {Kind: algorithms.TokenBucket, Rate: 10, Period: minute, MaxReserved: n(8)},
		"token bucket: 6 per 2s guaranteed, and a bank of up to 20 that fills at 1 per 1s": {Kind: algorithms.TokenBucket, Rate: 1, Period: algorithms.Second, Capacity: n(20), Minimum: &algorithms.Rate{Units: 6, Period: 2 * algorithms.Second}},
		"token bucket: 10 per 1m, up to 10 at once; overdraw: consumes every cost, and denies while in debt": {
			Kind: algorithms.TokenBucket, Rate: 10, Period: minute, Overdraw: true},
		"token bucket: 10 per 1m, up to 10 at once; penalty: after 3 denied within 1m a bucket is blocked for 5m, twice as long each time, up to 1h": {
			Kind: algorithms.TokenBucket, Rate: 10, Period: minute, Penalty: &algorithms.Penalty{After: 3, For: 5 * minute, Max: 60 * minute}},
		"fixed window: 5 in each 1h, starting with the clock (UTC)":                                     {Kind: algorithms.FixedWindow, Rate: 5, Period: 60 * minute, Start: at(0)},
		"fixed window: 5 in each 1d, starting 8h after the clock's (UTC)":                               {Kind: algorithms.FixedWindow, Rate: 5, Period: algorithms.Day, Start: at(8 * 60 * minute)},
		"fixed window: 5 in each 7d, saved up to 9, each key's windows starting at a moment of its own": {Kind: algorithms.FixedWindow, Rate: 5, Period: 7 * algorithms.Day, Capacity: n(9)},
		"sliding window: 5 in any 1m30s, the last window weighted by how much of it is still covered":   {Kind: algorithms.SlidingWindow, Rate: 5, Period: 90 * algorithms.Second},
		"sliding log: 5 in any 200ms, exactly":                                                          {Kind: algorithms.SlidingLog, Rate: 5, Period: 200_000},
		"leaky bucket: one at a time, 5 per 1m, no queue":                                               {Kind: algorithms.LeakyBucket, Rate: 5, Period: minute},
		"leaky bucket: one at a time, 5 per 1m, a queue of 50":                                          {Kind: algorithms.LeakyBucket, Rate: 5, Period: minute, Capacity: n(50)},
		"allows nothing": {Kind: algorithms.FixedWindow, Rate: 0, Period: minute},
	} {
		limit, err := algorithms.Compile(spec)
		if err != nil {
			t.Fatal(err)
		}
		if got := (&Policy{Limit: &limit}).Words(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if got := (&Policy{Unlimited: true}).Words(); got != "unlimited" {
		t.Errorf("got %s, want unlimited", got)
	}
}

func TestSpan(t *testing.T) {
	for span, want := range map[algorithms.Micros]string{
		0: "0s", 1: "1µs", 1500: "1ms500µs", algorithms.Second: "1s", 60 * algorithms.Second: "1m", 90 * algorithms.Second: "1m30s",
		3600 * algorithms.Second: "1h", 3660 * algorithms.Second: "1h1m", 3601 * algorithms.Second: "1h0m1s",
		algorithms.Day: "1d", 30 * algorithms.Day: "30d", algorithms.Day + algorithms.Second: "24h0m1s", -6 * algorithms.Second: "-6s",
		1<<62 + 1: "4611686018427s",
	} {
		if got := Span(span); got != want {
			t.Errorf("%d: got %s, want %s", span, got, want)
		}
	}
}
