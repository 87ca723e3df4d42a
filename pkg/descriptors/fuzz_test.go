package descriptors

import (
	"slices"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func FuzzKey(f *testing.F) {
	f.Add("a,b", "a,b", ",")
	f.Add("a,bc", "ab,c", ",")
	f.Add(strings.Repeat("a", 200)+",b", strings.Repeat("a", 200)+"b", ",")
	f.Add("\x01a\x01b", "\x01a,\x01b", ",")
	f.Fuzz(func(t *testing.T, a, b, separator string) {
		p := &Keys{Prefix: Prefix("d", "limit", "l", algorithms.FixedWindow)}
		one, other := strings.Split(a, separator), strings.Split(b, separator)
		keyA, hashA := p.AppendOf(nil, one, true)
		keyB, hashB := p.AppendOf(nil, other, true)
		if same := slices.Equal(one, other); same != (string(keyA) == string(keyB)) || same && hashA != hashB {
			t.Errorf("%q and %q: keys %q and %q, hashes %d and %d; want equal ones: %t", one, other, keyA, keyB, hashA, hashB, same)
		}
		if len(keyA) > len(p.Prefix)+1+maxValues {
			t.Errorf("%q: the key has %d bytes, want at most %d", one, len(keyA), len(p.Prefix)+1+maxValues)
		}
	})
}
