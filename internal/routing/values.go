package routing

import (
	"encoding/base64"
	"encoding/json"
	"iter"
	"strings"
	"unicode/utf8"

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

// inPHP has the characters that PHP replaces in the names of cookies and parameters.
var inPHP = strings.NewReplacer(" ", "_", ".", "_", "[", "_")

// isCookieName reports whether some applications treat a cookie called key as one called name.
func isCookieName(key, name string) bool { return key == name || isName(canonical.Unescape(key), name) }

// isName reports whether some applications treat key, the decoded name of a cookie or parameter, as name. ASP.NET ignores
// case. In PHP, a NUL ends the name.
func isName(key, name string) bool {
	key, _, _ = strings.Cut(key, "\x00")
	return key == name || utf8.RuneCountInString(key) == utf8.RuneCountInString(name) && strings.EqualFold(inPHP.Replace(key), inPHP.Replace(name))
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

// parameters returns the decoded values of all parameters of query called name, in their order. ok is false if
// applications differ in whether there is such a parameter, or in its value, because some of them end a parameter at
// ";".
func parameters(query, name string) iter.Seq2[string, bool] {
	return func(yield func(value string, ok bool) bool) {
		for rest, before := query, byte('&'); rest != ""; {
			part, next, after := rest, "", byte('&')
			if i := strings.IndexAny(rest, "&;"); i >= 0 {
				part, next, after = rest[:i], rest[i+1:], rest[i]
			}
			key, value, _ := strings.Cut(part, "=")
			if isName(canonical.Trim(canonical.Form(key)), name) && !yield(canonical.Form(value), before != ';' && after != ';') {
				return
			}
			rest, before = next, after
		}
	}
}

// first returns the first clear one of values.
func first(values iter.Seq2[string, bool]) (value string, ok bool) {
	for value, ok := range values {
		if ok {
			return value, true
		}
	}
	return "", false
}

// isAmbiguous reports whether applications differ in which of values, those of one name, is the value of this name.
func isAmbiguous(values iter.Seq2[string, bool]) bool {
	one, found := "", false
	for value, ok := range values {
		if !ok || found && value != one {
			return true
		}
		one, found = value, true
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
