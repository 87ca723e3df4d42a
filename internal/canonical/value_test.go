package canonical

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTrimRemovesWhatApplicationsRemove(t *testing.T) {
	blanks := []string{" ", "\t", "\v", "\f", "\r", "\n", "\x00", "\x1c", "\x1f", "\x85", "\xa0", "\u0085", "\u00a0", "\u2003", "\u3000", "\ufeff"}
	for _, key := range []string{"", "k", "a b", "ключ", "é\u00c3", "\xff", "a\xa0b"} {
		for _, before := range append(blanks, "") {
			for _, after := range append(blanks, "", " \xa0", "\xa0 ", "\u00a0\xa0") {
				if got := Trim(before + key + after); got != key && before+after != "" {
					t.Errorf("%q: got %q, want %q", before+key+after, got, key)
				}
			}
		}
	}
	for _, kept := range []string{"à", "kà", "Å", "x\xc3", "x\x7f", "\u200bx"} { // à and Å end with the bytes 0xA0 and 0x85
		if got := Trim(kept); got != kept {
			t.Errorf("%q: got %q, want no change", kept, got)
		}
	}
	if n := testing.AllocsPerRun(100, func() { Trim("\xa0 value\u00a0") }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// readers are the ways in which applications read the value of a cookie.
var readers = map[string]func(string) string{
	"as it is": func(v string) string { return v },
	"trimmed":  func(v string) string { return Trim(v) },
	"PHP":      Unescape,
	"Rack":     Form,
	"twice":    func(v string) string { return Unescape(Unescape(v)) },
	"Express": func(v string) string { // a value that is not valid stays as it is
		v = strings.TrimSpace(v)
		if strings.HasPrefix(v, `"`) && len(v) > 1 {
			v = v[1 : len(v)-1]
		}
		if decoded, err := url.PathUnescape(v); err == nil && utf8.ValidString(decoded) {
			return decoded
		}
		return v
	},
	"Python":                   cutPython,
	"Python, then decoded":     func(v string) string { return Unescape(cutPython(v)) },
	"decoded, then Python":     func(v string) string { return unquotePython(Unescape(v)) },
	"without quotes":           func(v string) string { return strings.Trim(v, `"`) },
	"without blanks and quote": func(v string) string { return Trim(strings.Trim(Trim(v), `"`)) },
}

// cutPython does what Python's http.cookies does: it ends a value without quotes at a blank, and decodes one in quotes.
func cutPython(v string) string {
	v = strings.Trim(v, " \t\n\r\f\v")
	if !strings.HasPrefix(v, `"`) {
		v, _, _ = strings.Cut(v, " ")
	}
	return unquotePython(v)
}

func unquotePython(v string) string {
	if len(v) < 2 || v[0] != '"' || v[len(v)-1] != '"' {
		return v
	}
	v = v[1 : len(v)-1]
	var out []byte
	for i := 0; i < len(v); i++ {
		if v[i] == '\\' && i+3 < len(v) {
			if c, err := strconv.ParseUint(v[i+1:i+4], 8, 8); err == nil {
				out, i = append(out, byte(c)), i+3
				continue
			}
		}
		if v[i] == '\\' && i+1 < len(v) {
			i++
		}
		out = append(out, v[i])
	}
	return string(out)
}

// TestCookieHasOneFormForWhatApplicationsReadAlike writes values at random. If an application reads two of them alike,
// they must have one form, or be refused.
func TestCookieHasOneFormForWhatApplicationsReadAlike(t *testing.T) {
	const seed = 7
	random := rand.New(rand.NewPCG(seed, seed))
	parts := []string{"a", "b", "%61", "%2561", "%", "6", "1", "25", `"`, `\`, `\141`, "141", "+", " ", "%20", "%2B", "%22", "%5C", "\xa0", "\u00a0", "="}
	type first struct{ value, form string }
	seen := map[string]map[string]first{}
	for name := range readers {
		seen[name] = map[string]first{}
	}
	refused := 0
	const tries = 50_000
	for range tries {
		var text strings.Builder
		for range 1 + random.IntN(6) {
			text.WriteString(parts[random.IntN(len(parts))])
		}
		value := text.String()
		form, ok := Cookie(value)
		if !ok {
			refused++
			continue
		}
		for name, read := range readers {
			is := read(value)
			if before, known := seen[name][is]; known && before.form != form {
				t.Fatalf("%s reads %q and %q as %q; want one form, but they have %q and %q", name, value, before.value, is, form, before.form)
			}
			seen[name][is] = first{value, form}
		}
	}
	if refused > tries*9/10 {
		t.Errorf("%d of %d values are refused: nothing is tested", refused, tries)
	}
}

func TestCookie(t *testing.T) {
	for value, want := range map[string]string{
		"alice": "alice true", `"alice"`: "alice true", " alice\t": "alice true", "alice\xa0": "alice true", "%61lice": "alice true", "%2561lice": "alice true",
		"%%361lice": "alice true", "s%3Aid.a%2Bb%3D": "s:id.a+b= true", "a+b/c==": "a+b/c== true", "a%20b": "a+b true", "%zz": "%zz true", "": " true", `""`: " true",
		"ключ": "ключ true", "%7B%22a%22%3A1%7D": `{"a":1} true`, "%22alice%22": "alice true",
		`"\141lice"`: `\141lice false`, `a\lice`: `a\lice false`, "%5c141lice": `\141lice false`, "a b": "a+b false", "a,b": "a,b false", `a"b`: `a"b false`, "a\x01b": "a\x01b false",
	} {
		form, ok := Cookie(value)
		if got := fmt.Sprint(form, " ", ok); got != want {
			t.Errorf("%q: got %q, want %q", value, got, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { Cookie("0123456789abcdef") }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// Each escape of a long value makes a new escape possible, so that decoding pass by pass would be slow.
func TestUnescapeAllIsOnePass(t *testing.T) {
	const n = 1 << 20
	if got := unescapeAll("%" + strings.Repeat("25", n) + "41"); got != "A" {
		t.Errorf("got %d bytes, want A", len(got))
	}
}
