package descriptors

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func limitOf(t *testing.T, s algorithms.Spec) *algorithms.Limit {
	t.Helper()
	l, err := algorithms.Compile(s)
	if err != nil {
		t.Fatal(err)
	}
	return &l
}

func number(n int64) *int64 { return &n }

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
		if got := tree.CouldMatch(entries); got != c.want {
			t.Errorf("%q of %q: %t, want %t", c.possible, c.paths, got, c.want)
		}
	}
}

func TestAllNodesAndTheirSamples(t *testing.T) {
	paths := []string{"b,x=1", "a", "a=1", "a=2", "a^=p", "a^=q", "a$=s", "a=x*y*z", "a~=[0-9]+", "c=1", "k_*"}
	want := []string{"a=1", "a=2", "a=p*", "a=q*", "a=*s", "a=x*y*z", "a~[0-9]+", "a", "b", "b,x=1", "c=1", "k_*"}
	for range 2 {
		tree := grow(t, paths...)
		var got []string
		for patterns, node := range tree.All() {
			var names []string
			var entries []Entry
			all := true
			for i := range patterns {
				p := &patterns[i]
				names = append(names, p.Shown())
				e, ok := p.Sample()
				if wild := p.Key == "" || p.How == Regex; ok == wild {
					t.Errorf("%s: sample %q, %t; want a sample: %t", p.Shown(), e, ok, !wild)
				}
				entries, all = append(entries, e), all && ok
			}
			got = append(got, strings.Join(names, ","))
			if all && tree.Match(entries) != node {
				t.Errorf("%s: the samples %q lead to another node", got[len(got)-1], entries)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		slices.Reverse(paths)
	}
	if e, _ := (&Pattern{Key: "a", How: Any}).Sample(); e.Value == "" {
		t.Error("the sample of a pattern for any value is the empty value, which another pattern may match")
	}
	n := 0
	for range grow(t, paths...).All() {
		if n++; n == 10 { // within b
			break
		}
	}
	if n != 10 {
		t.Errorf("the loop ended after %d nodes, want 10", n)
	}
}

func TestAPatternHasOneNode(t *testing.T) {
	for _, texts := range []string{"a a", "a=1 a=1", "a=1 a=2 a=1", "a a=1 a", "a b a b", "a^=p a^=p", "a$=s a^=p a$=s", "a~=x a~=y a~=x", "k_* k_* a k_*", "a=1 a a=1"} {
		tree, nodes := &Tree{}, map[string]*Node{}
		for _, text := range strings.Fields(texts) {
			node, added := tree.Add(nil, patternOf(t, text))
			if was := nodes[text]; added != (was == nil) || was != nil && was != node {
				t.Errorf("%s: %s is added: %t; want it added only the first time, and the same node later", texts, text, added)
			}
			nodes[text] = node
		}
		seen := map[*Node]bool{}
		for text, node := range nodes {
			if seen[node] {
				t.Errorf("%s: %s has the node of another pattern", texts, text)
			}
			seen[node] = true
		}
	}
	tree := &Tree{}
	empty, _ := tree.Add(nil, Pattern{Key: "a", How: Exact})
	if got := tree.Match([]Entry{{Key: "a", Value: "x"}}); got != nil {
		t.Error("a pattern for the empty value matches another value")
	}
	if got := tree.Match([]Entry{{Key: "a"}}); got != empty {
		t.Error("a pattern for the empty value does not match it")
	}
	if got := (&Tree{}).Match([]Entry{{}}); got != nil {
		t.Error("an empty Tree matches an empty entry")
	}
}

func TestPartsOfSpecs(t *testing.T) {
	for _, c := range []struct {
		name                              string
		s                                 algorithms.Spec
		rate                              int64
		capacity, initial, reserved, debt int64 // -1 means none
	}{
		{"a half", algorithms.Spec{Rate: 10, Capacity: number(20), Initial: number(8), MaxReserved: number(4), MaxDebt: number(6)}, 5, 10, 4, 2, 3},
		{"at least 1", algorithms.Spec{Rate: 1, Capacity: number(1), Initial: number(1), MaxReserved: number(1), MaxDebt: number(1)}, 1, 1, 0, 0, 0},
		{"nothing", algorithms.Spec{Rate: 0, Capacity: number(0)}, 0, 0, -1, -1, -1},
		{"only a rate", algorithms.Spec{Rate: 9}, 4, -1, -1, -1, -1},
		{"initial without capacity", algorithms.Spec{Rate: 10, Initial: number(10)}, 5, -1, 5, -1, -1},
		{"initial above the part of the rate", algorithms.Spec{Rate: 10, Initial: number(30)}, 5, -1, 5, -1, -1},
		{"initial above the rate", algorithms.Spec{Rate: 10, Capacity: number(40), Initial: number(30)}, 5, 20, 15, -1, -1},
	} {
		of := func(n *int64) int64 {
			if n == nil {
				return -1
			}
			return *n
		}
		got := Part(c.s, 0.5)
		if got.Rate != c.rate || of(got.Capacity) != c.capacity || of(got.Initial) != c.initial || of(got.MaxReserved) != c.reserved || of(got.MaxDebt) != c.debt {
			t.Errorf("%s: rate %d, capacity %d, initial %d, max_reserved %d, max_debt %d; want %+v", c.name, got.Rate, of(got.Capacity), of(got.Initial), of(got.MaxReserved), of(got.MaxDebt), c)
		}
	}
}

func TestLimitsThatCountByTheSecond(t *testing.T) {
	start := algorithms.Micros(0)
	for _, c := range []struct {
		s    algorithms.Spec
		want bool
	}{
		{algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: algorithms.Second, Start: &start}, true},
		{algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: algorithms.Second}, false},
		{algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: 2 * algorithms.Second, Start: &start}, false},
		{algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: algorithms.Second}, false},
		{algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 1, Period: algorithms.Second}, false},
	} {
		if got := PerSecond(limitOf(t, c.s)); got != c.want {
			t.Errorf("%+v: %t, want %t", c.s, got, c.want)
		}
	}
}

func TestSlotsOfDescriptorsAndKeys(t *testing.T) {
	entries := []Entry{{"a", "1"}, {"b", "2"}, {"b", "3"}}
	for name, c := range map[string]struct {
		p         Policy
		of, ofKey uint64
		key       []string
	}{
		"no extras":           {Policy{}, 0, 0, []string{"1"}},
		"a fixed slot":        {Policy{Extras: &Extras{Slot: Slot{Fixed: 7}}}, 7, 7, []string{"1"}},
		"not the first entry": {Policy{Open: []int{1, 2}, Extras: &Extras{Slot: Slot{Value: 2, Fixed: 9}}}, SlotNumber("3"), SlotNumber("3"), []string{"2", "3"}},
		"the second value":    {Policy{Open: []int{0, 1}, Extras: &Extras{Slot: Slot{Value: 2}}}, SlotNumber("2"), SlotNumber("y"), []string{"x", "y"}},
		"a key that is short": {Policy{Open: []int{0, 1}, Extras: &Extras{Slot: Slot{Value: 2, Fixed: 7}}}, SlotNumber("2"), 7, []string{"x"}},
		"an entry":            {Policy{Extras: &Extras{Slot: Slot{Entry: "b", Fixed: 7}}}, SlotNumber("2"), 7, []string{"x"}},
		"an entry in a key":   {Policy{Extras: &Extras{Slot: Slot{Entry: "b", Fixed: 7}}}, SlotNumber("2"), SlotNumber("y"), []string{"a", "b", "b", "y", "b", "z", "b"}},
		"an entry that lacks": {Policy{Extras: &Extras{Slot: Slot{Entry: "c", Fixed: 7}}}, 7, 7, nil},
	} {
		if of, ofKey := c.p.SlotOf(entries), c.p.SlotOfKey(c.key); of != c.of || ofKey != c.ofKey {
			t.Errorf("%s: slot %x of the descriptor and %x of the key, want %x and %x", name, of, ofKey, c.of, c.ofKey)
		}
	}
}

// Keys come from stores, which other programs can change. A key that does not have the layout of this version is shown as it
// is, with escapes.
func TestTextsOfStrangeKeys(t *testing.T) {
	prefix := Prefix("d", "limit", "n", algorithms.TokenBucket)
	digest := prefix + "d" + strings.Repeat("\x01", 32)
	for key, want := range map[string]string{
		prefix + "v": "limit n of domain d", prefix + "v\x01x\x02yz": "limit n of domain d, key x,yz", prefix + "v\x01a\x01b": "limit n of domain d, key a,b",
		Prefix("d", "path", "n", algorithms.TokenBucket) + "v": "limit n of domain d (path)",
		digest: "limit n of domain d, key with digest " + strings.Repeat("01", 32),
		"":     "", "1": "1", "2b": "2b", "1b": "1b", "1b\x05ab": `1b\x05ab`, "1b\x80": `1b\x80`, "1b\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01": `1b\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01`,
		prefix: `1b\x01d\x05limit\x01n`, prefix + "x": `1b\x01d\x05limit\x01nx`, prefix + "v\x05a": `1b\x01d\x05limit\x01nv\x05a`,
		"2" + prefix[1:] + "v": `2b\x01d\x05limit\x01nv`, "1b\x00\x00\x00v": "limit  of domain  ()",
		prefix + "x" + strings.Repeat("\x01", 32): `1b\x01d\x05limit\x01nx` + strings.Repeat(`\x01`, 32),
	} {
		if got := KeyText([]byte(key)); got != want {
			t.Errorf("%q: got %q, want %q", key, got, want)
		}
	}
}

func TestHashesOfWholeDescriptors(t *testing.T) {
	window := &Policy{Whole: true, Limit: limitOf(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: algorithms.Second})}
	bucket := &Policy{Whole: true, Limit: limitOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: algorithms.Second})}
	_, a := window.AppendKey(nil, []Entry{{"k", "a"}})
	_, b := window.AppendKey([]byte("before"), []Entry{{"k", "b"}})
	_, again := window.AppendKey([]byte("before"), []Entry{{"k", "a"}})
	_, none := bucket.AppendKey(nil, []Entry{{"k", "a"}})
	if a == 0 || b == 0 || a == b || a != again || none != 0 {
		t.Errorf("hashes %x, %x, %x and %x; want two different ones, the first again, and 0", a, b, again, none)
	}
}

func TestSpansOfDurations(t *testing.T) {
	const us, ms, s = algorithms.Micros(1), algorithms.Micros(1000), algorithms.Second
	for d, want := range map[algorithms.Micros]string{
		0: "0s", us: "1µs", ms: "1ms", s: "1s", 60 * s: "1m", 61 * s: "1m1s", 3600 * s: "1h", 3660 * s: "1h1m", 3601 * s: "1h0m1s", algorithms.Day: "1d", 7 * algorithms.Day: "7d", algorithms.Day + s: "24h0m1s",
		s + 500*ms: "1s500ms", ms + us: "1ms1µs", s + ms: "1s1ms", 1500: "1ms500µs", s + us: "1s1µs", -s: "-1s", -s - 500*ms: "-1s500ms", -60 * s: "-1m",
		algorithms.MaxTime: Span(algorithms.MaxTime-algorithms.MaxTime%s) + Span(algorithms.MaxTime%s), algorithms.MaxTime + 1: "4503599627s",
	} {
		got := Span(d)
		if got != want {
			t.Errorf("%d: %q, want %q", d, got, want)
		}
		if d > 0 && d <= algorithms.MaxTime {
			if again, err := ParseSpan(got); err != nil || again != d {
				t.Errorf("%q is parsed as %d, %v; want %d", got, again, err, d)
			}
		}
	}
	for text, want := range map[string]algorithms.Micros{
		"9223372036854775807us": math.MaxInt64, "9223372036854775808us": 0, "1us9223372036854775806us": math.MaxInt64, "1us9223372036854775807us": 0,
		"106751991d": 106751991 * algorithms.Day, "106751992d": 0, "1h30m": 5400 * s, "": 0, "h": 0, "1": 0, "1h30": 0, "1x": 0, "0s": 0, "0s0ms": 0, "0s1us": 1, "9223372036854775807us1us": 0, "9223372036854775807us9223372036854775807us3us": 0, "-1s": 0, "1.5s": 0, "5 s": 0,
	} {
		if got, err := ParseSpan(text); got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: got %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestLimitsInWords(t *testing.T) {
	const second, minute = algorithms.Second, 60 * algorithms.Second
	start := algorithms.Micros(0)
	for _, c := range []struct {
		p    Policy
		want string
	}{
		{Policy{Unlimited: true}, "unlimited"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Period: second})}, "allows nothing"},
		{Policy{Limit: &algorithms.Limit{Kind: 99, Rate: 1}}, "unknown algorithm"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: second})}, "token bucket: 5 per 1s, up to 5 at once"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: second, Initial: number(2), MaxReserved: number(7)})}, "token bucket: 5 per 1s, up to 5 at once; starts with 2; reservations up to 7 ahead"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: second, Start: &start})}, "fixed window: 5 in each 1s, starting with the clock (UTC)"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Calendar: &algorithms.Calendar{Unit: "month", Zone: "Europe/Berlin", Usual: 30 * algorithms.Day, Longest: 31 * algorithms.Day}})}, "fixed window: 5 in each month, by the calendar of Europe/Berlin"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 5, Period: second, Capacity: number(3)}), Extras: &Extras{MaxDelay: 2 * second}}, "leaky bucket: one at a time, 5 per 1s, a queue of 3; held for up to 2s"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 5, Period: second})}, "leaky bucket: one at a time, 5 per 1s, no queue"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: second, Penalty: &algorithms.Penalty{After: 3, For: second, Max: minute}})}, "token bucket: 5 per 1s, up to 5 at once; penalty: after 3 denied within 1s a bucket is blocked for 1s, twice as long each time, up to 1m"},
		{Policy{Limit: limitOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: second, Penalty: &algorithms.Penalty{After: 3, For: second, Max: second}})}, "token bucket: 5 per 1s, up to 5 at once; penalty: after 3 denied within 1s a bucket is blocked for 1s"},
	} {
		if got := c.p.Words(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	token, window := limitOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 9, Period: second, Settles: true, MaxDebt: number(4)}), limitOf(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 9, Period: second, Settles: true})
	usual := &Settle{Estimate: 100, Most: 50, Unknown: -1, TTL: minute}
	learned := &Settle{Estimate: 100, Least: 10, Most: 500, TrustDeclared: true, Unknown: 7, TTL: minute, Learn: &Learn{Quantile: 0.995, Per: []string{"model", "a\n"}}}
	for _, c := range []struct {
		s    *Settle
		l    *algorithms.Limit
		i    int
		want string
	}{
		{usual, token, 0, "a request reserves 50 units, the estimate, or its declared hits if these are more; at most 50"},
		{usual, token, 1, "a settlement within 1m refunds the unused units; later, it charges only what exceeds the reservation"},
		{usual, window, 1, "a settlement within 1m and in the same window refunds the unused units; later, it charges only what exceeds the reservation"},
		{usual, token, 2, "a request whose real cost is not reported costs what it reserved"},
		{usual, token, 3, "a real cost can take the bucket down to -4; what goes beyond is lost, and counted"},
		{learned, token, 0, `a request reserves the learned estimate (p99.5 of the real costs; 100 until enough are known), one for each configured value of model and a\n, or its declared hits, even if these are fewer; at least 10 and at most 500`},
		{learned, token, 2, "a request whose real cost is not reported costs 7 units"},
		{&Settle{Estimate: 3, Least: 20, Most: 50, Learn: &Learn{Quantile: 0.9}}, token, 0, "a request reserves the learned estimate (p90 of the real costs; 3 until enough are known), or its declared hits if these are more; at least 20 and at most 50"},
		{&Settle{Estimate: 3, Least: 20, Most: 50}, token, 0, "a request reserves 20 units, the estimate, or its declared hits if these are more; at least 20 and at most 50"},
	} {
		if got := c.s.Words(c.l)[c.i]; got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestNamesOfOnFailureAndPlaces(t *testing.T) {
	for _, f := range []OnFailure{Deny, Allow, Local, Error} {
		if got, ok := ParseOnFailure(f.String()); got != f || !ok {
			t.Errorf("%s: got %s, %t; want the same name, and true", f, got, ok)
		}
	}
	if got, ok := ParseOnFailure("denied"); ok || got != Deny {
		t.Errorf("an unknown name: got %s, %t; want deny, and false", got, ok)
	}
	if a, b := (Place{File: "f"}).String(), (Place{File: "f", Line: 3}).String(); a != "f" || b != "f:3" {
		t.Errorf("got %q and %q, want \"f\" and \"f:3\"", a, b)
	}
}

func TestExpressionsThatCannotBeUsed(t *testing.T) {
	for _, expression := range []string{"(", "a)(b", `\C`, strings.Repeat("x", 1001), "x{500}"} {
		if p, err := RegexPattern("k", expression); err == nil {
			t.Errorf("%.20q: got %+v; want an error", expression, p)
		}
	}
}

func TestShorterDescriptorsThatMatch(t *testing.T) {
	tree := grow(t, "a", "a,b,c", "a,b,c,d,e")
	for text, want := range map[string]int{"a=1": 0, "a=1,b=1": 1, "a=1,x=1": 1, "a=1,b=1,c=1": 0, "a=1,b=1,c=1,d=1": 3, "a=1,b=1,c=1,x=1": 3, "x=1": 0, "a=1,b=1,x=1": 1} {
		entries, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		if x := tree.Explain(entries); x.Miss != nil {
			got = x.Miss.Shorter
		}
		if got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
	short := grow(t, "key\n,x")
	if x := short.Explain([]Entry{{"key\t", "1"}}); x.Miss == nil || x.Miss.Reason != NoKey || !slices.Equal(x.Miss.Near, []string{`key\n`}) {
		t.Errorf("got %+v; want no such key, near %q", x.Miss, `key\n`)
	}
	if x := grow(t, "a", "k_*").Explain([]Entry{{"b", "1"}}); x.Miss == nil || x.Miss.Reason != NoKey || len(x.Miss.Near) != 2 {
		t.Errorf("got %+v; want no such key, near 2 others", x.Miss)
	}
}

func TestPatternsThatTakePrecedence(t *testing.T) {
	tree := grow(t, "a", "a^=x", "a^=xy", "a$=z", "a_*", "a=x*y*", "a~=x.*", "a=xyz", "a^=longer than the value", "a$=longer than the value")
	x := tree.Explain([]Entry{{"a", "xyz"}})
	if len(x.Steps) != 1 || x.Steps[0].Pattern != "a=xyz" || x.Steps[0].How != Exact || !slices.Equal(x.Steps[0].Over, []string{"a=xy*", "a=x*", "a=*z", "a_*", "a=x*y*", "a~x.*", "a"}) {
		t.Errorf("got %+v; want a=xyz, over the other patterns that match xyz", x.Steps)
	}
}
