package routing

import (
	"encoding/base64"
	"encoding/json"
	"strings"
)

// cookie is the first of that name.
func cookie(lines []string, name string) (value string, ok bool) {
	for _, line := range lines {
		for line != "" {
			var pair string
			pair, line, _ = strings.Cut(line, ";")
			key, value, is := strings.Cut(strings.Trim(pair, " \t"), "=")
			if !is || strings.TrimRight(key, " \t") != name {
				continue
			}
			value = strings.TrimLeft(value, " \t")
			if n := len(value); n > 1 && value[0] == '"' && value[n-1] == '"' { // as good as without
				value = value[1 : n-1]
			}
			return value, true
		}
	}
	return "", false
}

// claim is a claim of the bearer token. Nobody has checked its signature here.
func claim(lines []string, name string) (value string, ok bool) {
	const scheme = "bearer "
	if len(lines) == 0 || len(lines[0]) < len(scheme) || !strings.EqualFold(lines[0][:len(scheme)], scheme) {
		return "", false
	}
	_, rest, _ := strings.Cut(strings.TrimLeft(lines[0][len(scheme):], " "), ".")
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
