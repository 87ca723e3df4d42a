package routing

import (
	"encoding/base64"
	"encoding/json"
	"iter"
	"strings"
)

// cookies returns the values of all cookies called name, in their order.
func cookies(lines []string, name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, line := range lines {
			for line != "" {
				var pair string
				pair, line, _ = strings.Cut(line, ";")
				key, value, is := strings.Cut(strings.Trim(pair, " \t"), "=")
				if !is || strings.TrimRight(key, " \t") != name {
					continue
				}
				value = strings.TrimLeft(value, " \t")
				if n := len(value); n > 1 && value[0] == '"' && value[n-1] == '"' { // quotes are not part of the value
					value = value[1 : n-1]
				}
				if !yield(value) {
					return
				}
			}
		}
	}
}

func cookie(lines []string, name string) (value string, ok bool) {
	for value := range cookies(lines, name) {
		return value, true
	}
	return "", false
}

func cookiesDiffer(lines []string, name string) bool {
	first, _ := cookie(lines, name)
	for value := range cookies(lines, name) {
		if value != first {
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
