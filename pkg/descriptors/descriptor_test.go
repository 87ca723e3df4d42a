package descriptors

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func textOf(entries []Entry) string {
	escape := strings.NewReplacer(`\`, `\\`, `,`, `\,`, `=`, `\=`)
	parts := make([]string, len(entries))
	for i, e := range entries {
		parts[i] = escape.Replace(e.Key) + "=" + escape.Replace(e.Value)
	}
	return strings.Join(parts, ",")
}

func TestParse(t *testing.T) {
	for text, want := range map[string][]Entry{
		"a=b":         {{"a", "b"}},
		"a=":          {{"a", ""}},
		"a=b,c=d":     {{"a", "b"}, {"c", "d"}},
		"a=b=c":       {{"a", "b=c"}},
		`a=b\,c,d=e`:  {{"a", "b,c"}, {"d", "e"}},
		`a\=b=c\\`:    {{"a=b", `c\`}},
		`\a=\b`:       {{"a", "b"}},
		"path=/a b ü": {{"path", "/a b ü"}},
	} {
		if got, err := Parse(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"":       "descriptor is empty; write key=value[,key=value]…",
		"a":      `descriptor "a": "a" has no value; write key=value[,key=value]…`,
		"a=b,":   `descriptor "a=b,": "" has no value; write key=value[,key=value]…`,
		"a=b,c":  `descriptor "a=b,c": "c" has no value; write key=value[,key=value]…`,
		"=b":     `descriptor "=b": entry 1 has an empty key`,
		"a=b,=c": `descriptor "a=b,=c": entry 2 has an empty key`,
		`a=\`:    `descriptor "a=\\" ends in "\"; write "\\" for a backslash`,
	} {
		if got, err := Parse(text); err == nil || err.Error() != want {
			t.Errorf("%q: %q, %v; want %s", text, got, err, want)
		}
	}
}

func TestPrintableIsShortAndPlain(t *testing.T) {
	for text, want := range map[string]string{
		"bob": "bob", "a\nb": `a\nb`, "\xff": `\xff`, "ü": `\u00fc`, `"`: `\"`, strings.Repeat("x", 129): strings.Repeat("x", 128) + "…",
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := raw(t, "text")
		if got := Printable(text); !utf8.ValidString(got) || len(got) > 10*128+len("…") || strings.ContainsFunc(got, func(r rune) bool { return r < ' ' }) {
			t.Errorf("%q: got %q; want at most 128 characters of valid text without control characters", text, got)
		}
	})
}

func TestParseReadsThePlainFormat(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		entries := append([]Entry{{"k", raw(t, "value")}}, rawEntries(t, "more")...)
		plain := true
		for _, e := range entries {
			for _, text := range []string{e.Key, e.Value} {
				plain = plain && strings.ReplaceAll(Printable(text), `\\`, `\`) == text
			}
			plain = plain && e.Key != ""
		}
		got := Format(entries)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return r < ' ' }) {
			t.Errorf("%q: got %q; want valid text without control characters", entries, got)
		}
		if back, err := Parse(got); plain && (err != nil || !slices.Equal(back, entries)) {
			t.Errorf("the format %q is parsed as %q, %v; want %q", got, back, err, entries)
		}
	})
	if got := Format([]Entry{{"a=,b", "c=,d\\"}, {"é", "\n\xff"}}); got != `a\=\,b=c=\,d\\,\u00e9=\n\xff` {
		t.Errorf("got %v; want the separators and other bytes escaped", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"a=b", `a\,=b\\,c=`, "=", `\`, "a=b,,c=d"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		entries, err := Parse(text)
		if (err == nil) != (len(entries) > 0) {
			t.Fatalf("got %q, %v; want an error only without entries", entries, err)
		}
		if err != nil {
			return
		}
		if again, err := Parse(textOf(entries)); err != nil || !slices.Equal(again, entries) {
			t.Errorf("%q is parsed as %q; their escaped form is parsed as %q, %v; want the same entries", text, entries, again, err)
		}
	})
}
