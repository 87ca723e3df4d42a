package routing

import (
	"encoding/base64"
	"encoding/json"
	"iter"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/canonical"
)

// cookies returns the values of all cookies called name, in their order and in the form of canonical.Cookie. ok is
// false if applications differ in whether there is such a cookie, or in its value.
func cookies(lines []string, name string) iter.Seq2[string, bool] {
	return func(yield func(value string, ok bool) bool) {
		for _, line := range lines {
			for line != "" {
				var pair string
				pair, line, _ = strings.Cut(line, ";")
				key, value, is := strings.Cut(pair, "=")
				if key = canonical.Trim(key); !is || key != name && canonical.Unescape(key) != name {
					if hidesCookie(pair, name) && !yield("", false) {
						return
					}
					continue
				}
				if !yield(canonical.Cookie(value)) {
					return
				}
			}
		}
	}
}

// hidesCookie reports whether pair, which is another cookie, contains name and "=" after a blank, a comma or a quote.
// Some applications, such as those with Python's http.cookies, treat this as a cookie of its own.
func hidesCookie(pair, name string) bool {
	for {
		i := strings.Index(pair, name)
		if i < 0 {
			return false
		}
		rest := canonical.TrimLeft(pair[i+len(name):])
		if i > 0 && strings.IndexByte(" \t,\"", pair[i-1]) >= 0 && strings.HasPrefix(rest, "=") {
			return true
		}
		pair = pair[i+len(name):]
	}
}

func cookie(lines []string, name string) (value string, ok bool) {
	for value, ok := range cookies(lines, name) {
		if ok {
			return value, true
		}
	}
	return "", false
}

// ambiguousCookie reports whether applications differ in the value of the cookie called name.
func ambiguousCookie(lines []string, name string) bool {
	first, found := cookie(lines, name)
	for value, ok := range cookies(lines, name) {
		if !ok || found && value != first {
			return true
		}
	}
	return false
}

// claim returns the claim called name of the bearer token in the first of lines, the values of the header
// Authorization. ok is false unless the claim is a string, a number or a boolean. claim does not verify the token's
// signature.
func claim(lines []string, name string) (value string, ok bool) {
	const scheme, blanks = "bearer", " \t"
	if len(lines) == 0 || len(lines[0]) <= len(scheme) || !strings.EqualFold(lines[0][:len(scheme)], scheme) {
		return "", false
	}
	token := strings.TrimLeft(lines[0][len(scheme):], blanks) // applications accept any number of blanks
	if len(token)+len(scheme) == len(lines[0]) {
		return "", false // another scheme that starts with the same letters
	}
	_, rest, _ := strings.Cut(token, ".")
	payload, _, signed := strings.Cut(rest, ".")
	if !signed {
		return "", false
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(payload, "="))
	if err != nil {
		return "", false
	}
	var claims map[string]json.RawMessage
	if json.Unmarshal(text, &claims) != nil {
		return "", false
	}
	raw := claims[name]
	switch {
	case len(raw) == 0 || raw[0] == '{' || raw[0] == '[' || string(raw) == "null":
		return "", false
	case raw[0] == '"':
		return value, json.Unmarshal(raw, &value) == nil
	default:
		return string(raw), true
	}
}
