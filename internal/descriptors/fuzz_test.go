package descriptors

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// FuzzKey checks that lists of values have equal keys if and only if the lists are equal.
func FuzzKey(f *testing.F) {
	f.Add("a,b", "a,b", ",")
	f.Add("a,bc", "ab,c", ",")
	f.Add(strings.Repeat("a", 200)+",b", strings.Repeat("a", 200)+"b", ",")
	f.Add("\x01a\x01b", "\x01a,\x01b", ",")
	f.Fuzz(func(t *testing.T, a, b, separator string) {
		limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: algorithms.Second})
		if err != nil {
			t.Fatal(err)
		}
		p := &Policy{Prefix: Prefix("d", "limit", "l", limit.Kind), Limit: &limit}
		one, other := strings.Split(a, separator), strings.Split(b, separator)
		keyA, hashA := p.AppendKeyOf(nil, one)
		keyB, hashB := p.AppendKeyOf(nil, other)
		if same := slices.Equal(one, other); same != (string(keyA) == string(keyB)) || same && hashA != hashB {
			t.Errorf("%q and %q: keys %q and %q, hashes %d and %d; want equal ones: %t", one, other, keyA, keyB, hashA, hashB, same)
		}
		if len(keyA) > len(p.Prefix)+1+maxValues {
			t.Errorf("%q: the key has %d bytes, want at most %d", one, len(keyA), len(p.Prefix)+1+maxValues)
		}
	})
}

// FuzzSpan checks that ParseSpan parses what Span writes up to algorithms.MaxTime, and agrees with package time
// for units that both know.
func FuzzSpan(f *testing.F) {
	for _, text := range []string{"500ms", "1h30m", "2d", "1w", "9223372036854775807us", "1us1us", "", "1", "s", "-1s", "1h0m"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		span, err := ParseSpan(text)
		if err != nil {
			return
		}
		if again, err := ParseSpan(Span(span)); span <= algorithms.MaxTime && (err != nil || again != span) {
			t.Errorf("%q is %d us, written %q, read again %d us, %v; want the same number", text, span, Span(span), again, err)
		}
		if d, err := time.ParseDuration(text); err == nil && d/time.Microsecond != time.Duration(span) {
			t.Errorf("ParseSpan(%q) is %d us, want %s as in package time", text, span, d)
		}
	})
}
