package descriptors

import (
	"strings"
	"testing"
)

func TestBoundsOfExpressions(t *testing.T) {
	p, err := RegexPattern("k", "a.c")
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]bool{"abc": true, "a\nc": true, "abc\n": false, "abcd": false, "xabc": false} {
		if got := p.matches(value); got != want {
			t.Errorf("%q: matches %v, want %v", value, got, want)
		}
	}
	longest := "[" + strings.Repeat("a", maxRegex-2) + "]"
	if _, err := RegexPattern("k", longest); err != nil {
		t.Errorf("%d bytes: %v, want no error", len(longest), err)
	}
	accepted := 0
	for n := 1; n < maxRegexSteps+2; n++ {
		if _, err := RegexPattern("k", strings.Repeat("a", n)); err == nil {
			accepted = n
		}
	}
	if accepted != 196 { // 196 steps for the characters and 2 for each end make 200
		t.Errorf("at most %d characters are accepted, want 196", accepted)
	}
}

func TestExpressionsAreBounded(t *testing.T) {
	for expression, want := range map[string]string{
		"a(":                                   "is not a regular expression (RE2): missing closing ): `a(`",
		"a)(b":                                 "is not a regular expression (RE2): unexpected ): `a)(b`",
		`(a)\1`:                                "is not a regular expression (RE2): invalid escape sequence: `\\1`",
		"\xff":                                 "is not a regular expression (RE2): invalid UTF-8: `\xff`",
		"[a-z]{1,200}":                         "needs 403 steps, but the maximum is 200; write a simpler one, because a repetition such as {1,36} counts 36 times",
		strings.Repeat("a", maxRegex+1):        "has 1001 bytes; the maximum is 1000",
		strings.Repeat("(", 500):               "",
		"((((((((((a{10}){10}){10}){10}))))))": "",
	} {
		_, err := RegexPattern("k", expression)
		if err == nil || want != "" && err.Error() != want {
			t.Errorf("%.20q: %v, want %s", expression, err, want)
		}
	}
}
