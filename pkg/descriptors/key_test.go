package descriptors

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// all returns the Keys of a limit whose buckets are identified by the values of n entries.
func all(n int) *Keys {
	p := &Keys{Prefix: Prefix("d", "limit", "x", algorithms.FixedWindow)}
	for i := range n {
		p.Open = append(p.Open, i)
	}
	return p
}

// raw draws bytes that need not be text. They are often short, and sometimes near the length at which a
// digest replaces values.
func raw(t *rapid.T, what string) string {
	b := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 2, 'a', 'b', '_', ',', '=', 0x80, 0xff}), 0, 4).Draw(t, what)
	if rapid.IntRange(0, 3).Draw(t, what+" is long") == 0 {
		b = append(b, bytes.Repeat([]byte{'x'}, rapid.IntRange(120, 135).Draw(t, what+" length"))...)
	}
	return string(b)
}

func rawEntries(t *rapid.T, what string) []Entry {
	entries := make([]Entry, rapid.IntRange(0, 3).Draw(t, what+" entries"))
	for i := range entries {
		entries[i] = Entry{raw(t, what+" key"), raw(t, what+" value")}
	}
	return entries
}

func valuesOf(entries []Entry) []string {
	list := make([]string, len(entries))
	for i := range entries {
		list[i] = entries[i].Value
	}
	return list
}

// Descriptors that differ only in the keys of their entries have equal bucket keys here, because in a configuration the
// prefix stands for the keys of the entries.
func TestKeysAreEqualExactlyIfTheValuesAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rawEntries(t, "a"), rawEntries(t, "b")
		if rapid.Bool().Draw(t, "same values") {
			b = slices.Clone(a)
			for i := range b {
				b[i].Key = raw(t, "other key")
			}
		}
		keyA, hashA := all(len(a)).Append(nil, a, true)
		keyB, hashB := all(len(b)).Append(nil, b, true)
		same := slices.Equal(valuesOf(a), valuesOf(b))
		if bytes.Equal(keyA, keyB) != same || same && hashA != hashB {
			t.Errorf("%q and %q: same values %t, keys %q and %q; want equal keys and hashes exactly for the same values", a, b, same, keyA, keyB)
		}
		if again, hash := all(len(a)).AppendOf([]byte("before"), valuesOf(a), true); string(again) != "before"+string(keyA) || hash != hashA {
			t.Errorf("%q: AppendOf returned %q, %d; want the key %q after the prefix, and %d", a, again, hash, keyA, hashA)
		}
	})
}

func TestKeysOfWholeDescriptorsAreEqualExactlyIfTheyAre(t *testing.T) {
	p := &Keys{Whole: true, Prefix: Prefix("d", "path", "x*", algorithms.FixedWindow)}
	rapid.Check(t, func(t *rapid.T) {
		a, b := rawEntries(t, "a"), rawEntries(t, "b")
		if rapid.Bool().Draw(t, "same") {
			b = slices.Clone(a)
		}
		keyA, hashA := p.Append(nil, a, true)
		keyB, hashB := p.Append(nil, b, true)
		if same := slices.Equal(a, b); bytes.Equal(keyA, keyB) != same || same && hashA != hashB {
			t.Errorf("%q and %q: same %t, keys %q and %q; want equal keys and hashes exactly for the same entries", a, b, same, keyA, keyB)
		}
	})
}

func TestPrefixesKeepLimitsApart(t *testing.T) {
	type limit struct {
		domain, what, id string
		kind             algorithms.Kind
	}
	draw := func(t *rapid.T, name string) limit {
		return limit{
			raw(t, name+" domain"), rapid.SampledFrom([]string{"limit", "path", "override"}).Draw(t, name+" what"), raw(t, name+" id"),
			rapid.SampledFrom([]algorithms.Kind{algorithms.TokenBucket, algorithms.FixedWindow, algorithms.Guaranteed}).Draw(t, name+" kind"),
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t, "a"), draw(t, "b")
		entriesA, entriesB := rawEntries(t, "a"), rawEntries(t, "b")
		key := func(l limit, entries []Entry) []byte {
			p := all(len(entries))
			p.Prefix = Prefix(l.domain, l.what, l.id, l.kind)
			k, _ := p.Append(nil, entries, true)
			return k
		}
		if a != b && bytes.Equal(key(a, entriesA), key(b, entriesB)) {
			t.Errorf("%+v %q and %+v %q have the same key; want different keys", a, entriesA, b, entriesB)
		}
	})
}

func TestKeysAllocateNothing(t *testing.T) {
	dst := make([]byte, 0, 4096)
	entries := []Entry{{"user", "bob"}, {"path", strings.Repeat("/x", 200)}, {"k", "v"}}
	for name, p := range map[string]*Keys{
		"one":   {Prefix: all(0).Prefix, Open: []int{0}},
		"all":   all(3), // a digest replaces the values, because they are long
		"whole": {Prefix: all(0).Prefix, Whole: true},
	} {
		if n := testing.AllocsPerRun(100, func() { p.Append(dst, entries, true) }); n > 0 {
			t.Errorf("%s: Append: %v allocations, want 0", name, n)
		}
	}
	p, key := all(0), []string{"bob", "eve"}
	if n := testing.AllocsPerRun(100, func() { p.AppendOf(dst, key, true) }); n > 0 {
		t.Errorf("AppendOf: %v allocations, want 0", n)
	}
}

func BenchmarkAppendKey(b *testing.B) {
	dst := make([]byte, 0, 4096)
	for name, c := range map[string]struct {
		p       *Keys
		entries []Entry
	}{
		"one":    {all(1), []Entry{{"user_id", "bob"}}},
		"three":  {all(3), []Entry{{"tenant", "acme"}, {"user_id", "bob"}, {"path", "/api/v1/items"}}},
		"digest": {all(1), []Entry{{"token", strings.Repeat("x", 500)}}},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.p.Append(dst, c.entries, true)
			}
		})
	}
}

func TestKeyText(t *testing.T) {
	p := Keys{Prefix: Prefix("edge", "limit", "send", algorithms.TokenBucket)}
	inline := Keys{Prefix: Prefix("edge", "inline", "tenant", algorithms.TokenBucket)}
	key := func(p *Keys, values ...string) []byte {
		k, _ := p.AppendOf(nil, values, true)
		return k
	}
	for _, c := range []struct {
		key  []byte
		want string
	}{
		{key(&p), "limit send of domain edge"},
		{key(&p, "bob"), "limit send of domain edge, key bob"},
		{key(&p, "bob", "a\xff\n"), `limit send of domain edge, key bob,a\xff\n`},
		{key(&inline, "acme"), "limit tenant of domain edge (inline), key acme"},
		{key(&p, strings.Repeat("x", 200)), "limit send of domain edge, key with digest 948cdefb43779b0b015ecba112d64d8b1dc71bb3bddd14b9bd3ac509c0894676"},
		{[]byte("mine:\x00"), `mine:\x00`},
		{key(&p, "bob")[:18], `1b\x04edge\x05limit\x04send`},
		{nil, ""},
	} {
		if got := KeyText(c.key); got != c.want {
			t.Errorf("%q: %q, want %q", c.key, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) { // random bytes, and keys that were cut
		text := rapid.SliceOf(rapid.Byte()).Draw(t, "key")
		whole := key(&p, string(text))
		for _, k := range [][]byte{text, whole[:rapid.IntRange(0, len(whole)).Draw(t, "length")]} {
			if s := KeyText(k); len(s) > 4096 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' }) {
				t.Fatalf("%q: got %q; want at most 4096 bytes without control characters", k, s)
			}
		}
	})
}

func TestKeysOfExactly128BytesAreKept(t *testing.T) {
	p := &Keys{Prefix: "1a\x01d\x05limit\x01n"}
	for n, want := range map[int]byte{127: 'v', 128: 'd', 1 << 20: 'd'} {
		key, _ := p.AppendOf(nil, []string{strings.Repeat("x", n)}, false)
		if got := key[len(p.Prefix)]; got != want || len(key) > len(p.Prefix)+1+maxValues {
			t.Errorf("%d bytes and their length: got the form %c in %d bytes, want %c in at most %d", n, got, len(key), want, len(p.Prefix)+1+maxValues)
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
	whole := &Keys{Whole: true}
	_, a := whole.Append(nil, []Entry{{"k", "a"}}, true)
	_, b := whole.Append([]byte("before"), []Entry{{"k", "b"}}, true)
	_, again := whole.Append([]byte("before"), []Entry{{"k", "a"}}, true)
	_, none := whole.Append(nil, []Entry{{"k", "a"}}, false)
	if a == 0 || b == 0 || a == b || a != again || none != 0 {
		t.Errorf("hashes %x, %x, %x and %x; want two different ones, the first again, and 0", a, b, again, none)
	}
}
