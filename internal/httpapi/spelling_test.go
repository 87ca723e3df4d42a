package httpapi

import (
	"fmt"
	"net/http"
	"testing"
)

// TestEachSpellingOfACookieIsOneKey sends one session in every spelling that replaces letters by escapes, in percent
// escapes and in those that Python's http.cookies decodes. A limit of 3 must allow 3 of them.
func TestEachSpellingOfACookieIsOneKey(t *testing.T) {
	const session = "alice9"
	for name, escape := range map[string]func(c byte) string{
		"percent":        func(c byte) string { return fmt.Sprintf("%%%02x", c) },
		"percent, twice": func(c byte) string { return fmt.Sprintf("%%25%02X", c) },
		"quoted octal":   func(c byte) string { return fmt.Sprintf(`\%03o`, c) },
		"quoted pair":    func(c byte) string { return `\` + string(c) },
	} {
		d, _ := authHandler(t, "domain: d\ndescriptors: [{key: sid, rate_limit: {unit: year, requests_per_unit: 3}}]\nauth:\n  routes:\n    - descriptors: [[{key: sid, from: \"cookie:sid\"}]]\n")
		allowed := 0
		for which := range 1 << len(session) {
			value := ""
			for i := range len(session) {
				if c := session[i]; which>>i&1 == 1 {
					value += escape(c)
				} else {
					value += string(c)
				}
			}
			if name[0] == 'q' {
				value = `"` + value + `"`
			}
			if put(d.handler(), foreign, "GET /v1/auth", "Cookie: sid="+value).Code == http.StatusOK {
				allowed++
			}
		}
		if want := map[bool]int{true: 1, false: 3}[name[0] == 'q']; allowed != want { // without an escape, a quoted value is clear
			t.Errorf("%s: %d of %d spellings are allowed, want %d", name, allowed, 1<<len(session), want)
		}
	}
}
