package routing

import (
	"encoding/base64"
	"encoding/json"
	"iter"
	"strings"

	"golang.org/x/net/http/httpguts"

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
				pair = canonical.Trim(pair)
				key, value, is := strings.Cut(pair, "=")
				if hidesCookie(pair, name) {
					if !yield("", false) {
						return
					}
				} else if is && isCookieName(canonical.TrimRight(key), name) && !yield(canonical.Cookie(value)) {
					return
				}
			}
		}
	}
}

// inPHP has the characters that PHP replaces in the names of cookies.
var inPHP = strings.NewReplacer(" ", "_", ".", "_", "[", "_")

// isCookieName reports whether some applications treat a cookie called key as one called name. ASP.NET ignores case.
func isCookieName(key, name string) bool {
	return key == name || strings.EqualFold(inPHP.Replace(canonical.Unescape(key)), inPHP.Replace(name))
}

// hidesCookie reports whether pair is not valid by RFC 6265, and contains a cookie called name behind a character that
// names of cookies cannot have. Python's http.cookies finds such a cookie behind a blank, and ASP.NET also behind
// other characters.
func hidesCookie(pair, name string) bool {
	isOther := func(r rune) bool { return !httpguts.IsTokenRune(r) }
	isOtherInValue := func(r rune) bool { return isOther(r) && !strings.ContainsRune("()/:<=>?@[]{}", r) }
	if key, value, _ := strings.Cut(pair, "="); key != "" && !strings.ContainsFunc(key, isOther) && !strings.ContainsFunc(value, isOtherInValue) {
		return false
	}
	for i, c := range []byte(pair) {
		if c != '=' {
			continue
		}
		before := canonical.TrimRight(pair[:i])
		if start := strings.LastIndexFunc(before, isOther) + 1; start > 0 && isCookieName(before[start:], name) {
			return true
		}
	}
	return false
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
