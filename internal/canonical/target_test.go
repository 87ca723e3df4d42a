package canonical

import (
	"net/url"
	"strings"
	"testing"
)

func TestSplit(t *testing.T) {
	for _, c := range []struct{ target, path, query string }{
		{"/a?b=c?d", "/a", "b=c?d"},
		{"/a", "/a", ""},
		{"/a#b?c", "/a", ""},
		{"/a?b#c", "/a", "b"},
		{"#a?b", "", ""},
		{"http://h/a/b?c", "/a/b", "c"},
		{"http://h?c", "/", "c"},
		{"http://h", "/", ""},
		{"/x?u=http://h/a", "/x", "u=http://h/a"},
		{"/x://y/z", "/x://y/z", ""},
		{"://h/a", "://h/a", ""},
		{"*", "*", ""},
		{"", "", ""},
		{"//h/a", "//h/a", ""},
	} {
		if path, query := Split(c.target); path != c.path || query != c.query {
			t.Errorf("%q: %q %q, want %q %q", c.target, path, query, c.path, c.query)
		}
	}
}

func TestPathHasOneForm(t *testing.T) {
	for path, want := range map[string]string{
		"/login": "/login", "//login": "/login", "/x/../login": "/login", "/./login": "/login", "/%6cogin": "/login",
		"/x/%2e%2E/login": "/login", "/x%2f..%2Flogin": "/login", "/../../login": "/login", "/login/": "/login/",
		"/login//": "/login/", "/login/.": "/login/", "/login/x/..": "/login/", "/": "/", "//": "/", "/..": "/",
		"/%": "/%", "/%4": "/%4", "/%zz": "/%zz", "/%2541": "/%41", "/a%00b": "/a\x00b", "/\xff": "/\xff", "/%ff": "/\xff",
		"/...": "/...", "/.a": "/.a", "*": "*", "": "", "a//b/../c": "a//b/../c",
		"/%4z": "/%4z", "/%41x41": "/Ax41", "/%z4": "/%z4", "/%a": "/%a", "/ab%": "/ab%", "/x%41": "/xA",
	} {
		if got := Path(path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}

const everything = IgnoreCase | IgnoreTrailingSlash | IgnoreParameters | IgnoreBackslash

func TestFold(t *testing.T) {
	for _, c := range []struct {
		path   string
		ignore Ignore
		want   string
	}{
		{"/LOGIN", 0, "/LOGIN"}, {"/LOGIN", IgnoreCase, "/login"}, {"/LOGIN", everything &^ IgnoreCase, "/LOGIN"},
		{"/\u212aey/\u017fet/\xff\xc4", IgnoreCase, "/key/set/\xff\xc4"}, {"/log\u0130n/l\u0131st", IgnoreCase, "/login/list"}, {"/\u212a", everything &^ IgnoreCase, "/\u212a"},
		{"/login/", IgnoreTrailingSlash, "/login"}, {"/", IgnoreTrailingSlash, "/"}, {"/login/", everything &^ IgnoreTrailingSlash, "/login/"},
		{"/login;x=1", IgnoreParameters, "/login"}, {"/;x/login", IgnoreParameters, "/login"}, {"/a;x/..;y/login;", IgnoreParameters, "/login"},
		{"/login/;x", IgnoreParameters, "/login/"}, {"/login/;x", everything, "/login"}, {"/login;x", everything &^ IgnoreParameters, "/login;x"},
		{"\\login", IgnoreBackslash, "/login"}, {"/\\login", IgnoreBackslash, "/login"}, {"/a\\..\\login", IgnoreBackslash, "/login"},
		{"\\login", everything &^ IgnoreBackslash, "\\login"}, {"\\LOGIN\\;x\\", everything, "/login"},
		{"*", everything, "*"}, {"", everything, ""}, {"/login", everything, "/login"},
	} {
		if got := Fold(c.path, c.ignore); got != c.want {
			t.Errorf("%q, %04b: %q, want %q", c.path, c.ignore, got, c.want)
		}
	}
}

func TestFoldLeavesTheCommonPathAlone(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { Fold("/api/v1/users", everything) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// FuzzTarget checks that Path resolves paths that start with "/", and that normalizing such a path again changes
// nothing. Folding a folded path must change nothing either.
func FuzzTarget(f *testing.F) {
	for _, s := range []string{"/a?k=v", "/%2e%2e//x?%6b=1&k=2#f", "http://h/x", "/%zz?k=%zz+"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		path, _ := Split(s)
		one := Path(path)
		if strings.HasPrefix(one, "/") {
			if strings.Contains(one, "//") || strings.HasSuffix(one, "/..") || strings.Contains(one+"/", "/../") || strings.Contains(one+"/", "/./") {
				t.Errorf("Path(%q) is %q, which has an empty segment, . or ..; want them resolved", path, one)
			}
			if again := Path((&url.URL{Path: one}).EscapedPath()); again != one {
				t.Errorf("%q escaped and normalized again is %q; want the same path", one, again)
			}
		}
		for ignore := range everything + 1 {
			folded := Fold(one, ignore)
			if again := Fold(folded, ignore); again != folded {
				t.Errorf("%q, %04b: folded %q, folded again %q; want the same path", one, ignore, folded, again)
			}
		}
	})
}

func TestEachByteIsDecodedAndLowered(t *testing.T) {
	const digits = "0123456789abcdef"
	for c := range 256 {
		char := byte(c)
		if got, want := HexDigit(char), strings.IndexByte(digits, char); got != want && (char < 'A' || char > 'F' || got != int(char-'A')+10) {
			t.Errorf("HexDigit(%q): got %d, want %d", char, got, want)
		}
		escaped := "%" + digits[c>>4:c>>4+1] + digits[c&15:c&15+1]
		for _, text := range []string{escaped, strings.ToUpper(escaped)} {
			if got := Unescape(text); got != string([]byte{char}) {
				t.Errorf("Unescape(%q): got %q, want the byte %d", text, got, char)
			}
		}
		lowered := char
		if strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZ", char) >= 0 {
			lowered += 'a' - 'A'
		}
		for _, around := range []string{"", "Q"} { // alone, and beside a letter that changes
			want := string([]byte{lowered}) + strings.ToLower(around)
			if got := Lower(string([]byte{char}) + around); got != want {
				t.Errorf("Lower(%q): got %q, want %q", string([]byte{char})+around, got, want)
			}
		}
	}
}
