// Package target reads the target of an HTTP request as a proxy received it: bytes that a client
// chose, in whatever spelling. Where many spellings mean one thing to the application behind the
// proxy, there is one form of it here, so that a client cannot leave a limit by respelling its
// request.
package target

import "strings"

// Split takes a target apart. What stands after "#" belongs to neither part: browsers do not send
// it, and NGINX does not look at it. Of an absolute target only what stands after the host counts.
func Split(target string) (path, query string) {
	if i := strings.IndexByte(target, '#'); i >= 0 {
		target = target[:i]
	}
	path, query, _ = strings.Cut(target, "?")
	if i := strings.Index(path, "://"); i > 0 && !strings.Contains(path[:i], "/") {
		_, path, _ = strings.Cut(path[i+len("://"):], "/")
		path = "/" + path
	}
	return path, query
}

// Path is the one form in which paths are compared and become keys: percent-decoded, once, with
// "//", "." and ".." resolved. What stands after a wrong escape stays as it is.
func Path(path string) string {
	path = Unescape(path)
	if !strings.HasPrefix(path, "/") || !strings.Contains(path, "//") && !strings.Contains(path, "/.") {
		return path
	}
	var parts []string
	words := strings.Split(path[1:], "/")
	for i, word := range words {
		switch word {
		case "..":
			parts = parts[:max(0, len(parts)-1)]
		case "", ".":
		default:
			parts = append(parts, word)
			continue
		}
		if i == len(words)-1 { // it stood for a folder
			parts = append(parts, "")
		}
	}
	return "/" + strings.Join(parts, "/")
}

// Query is the first value of a parameter. Names are compared decoded: applications do not tell
// them apart either.
func Query(query, name string) (value string, ok bool) {
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		key, value, _ := strings.Cut(pair, "=")
		if key == name || strings.ContainsAny(key, "%+") && form(key) == name {
			return form(value), true
		}
	}
	return "", false
}

// form decodes a word of a query, as of a form: "+" is a space.
func form(text string) string {
	return Unescape(strings.ReplaceAll(text, "+", " "))
}

// Unescape decodes %HH.
func Unescape(text string) string {
	i := strings.IndexByte(text, '%')
	if i < 0 {
		return text
	}
	out := append(make([]byte, 0, len(text)), text[:i]...)
	for ; i < len(text); i++ {
		c := text[i]
		if c == '%' && i+2 < len(text) {
			if high, low := HexDigit(text[i+1]), HexDigit(text[i+2]); high >= 0 && low >= 0 {
				c = byte(high<<4 | low)
				i += 2
			}
		}
		out = append(out, c)
	}
	return string(out)
}

// HexDigit is the value of c, or -1.
func HexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	default:
		return -1
	}
}
