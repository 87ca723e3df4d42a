// Package canonical normalizes the target of an HTTP request as a proxy received it. The application behind the
// proxy may treat different spellings of a target as equal. This package gives them one form, so that a
// client cannot avoid a limit with another spelling.
package canonical

import "strings"

// Split splits a target into path and query. It drops the part after "#", which browsers do not send and
// NGINX ignores. It also drops scheme and host of an absolute target.
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

// Path returns the normalized form of path. Conditions are compared with this form, and it becomes part of keys.
// Path decodes percent escapes once. Invalid escapes stay unchanged. If the result starts with "/", Path also
// resolves "//", "." and "..".
func Path(path string) string { return Resolve(Unescape(path)) }

// Resolve resolves empty segments, "." and ".." in a path that starts with "/". It returns other paths unchanged.
func Resolve(path string) string {
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
		if i == len(words)-1 { // keeps the slash at the end, because the path means a directory
			parts = append(parts, "")
		}
	}
	return "/" + strings.Join(parts, "/")
}

// Ignore is a set of differences between paths that an application ignores.
type Ignore uint8

const (
	// IgnoreCase means that /LOGIN equals /login.
	IgnoreCase Ignore = 1 << iota
	// IgnoreTrailingSlash means that /login/ equals /login.
	IgnoreTrailingSlash
	// IgnoreParameters means that /login;x=1 and /a;x/..;y/login equal /login.
	IgnoreParameters
	// IgnoreBackslash means that \login equals /login.
	IgnoreBackslash
)

// Fold removes the differences in the set ignored from path, so that paths with no other difference become equal.
// path must be a result of Path or Unescape.
func Fold(path string, ignored Ignore) string {
	if ignored&IgnoreBackslash != 0 {
		path = strings.ReplaceAll(path, `\`, "/")
	}
	if ignored&IgnoreParameters != 0 {
		path = withoutParameters(path)
	}
	path = Resolve(path) // the steps above may have created segments such as ".."
	if ignored&IgnoreCase != 0 {
		path = strings.ReplaceAll(strings.ReplaceAll(path, kelvin, "k"), longS, "s")
		path = Lower(strings.ReplaceAll(strings.ReplaceAll(path, dottedI, "i"), dotlessI, "i"))
	}
	if ignored&IgnoreTrailingSlash != 0 {
		for len(path) > 1 && path[len(path)-1] == '/' { // several slashes can remain only if the path does not start with "/"
			path = path[:len(path)-1]
		}
	}
	return path
}

// These are the only letters outside ASCII whose lower or upper case, by Unicode's simple mappings, is an ASCII
// letter. Applications that ignore case may treat them as that letter.
const kelvin, longS, dottedI, dotlessI = "\u212a", "\u017f", "\u0130", "\u0131"

func withoutParameters(path string) string {
	if !strings.Contains(path, ";") {
		return path
	}
	words := strings.Split(path, "/")
	for i, word := range words {
		words[i], _, _ = strings.Cut(word, ";")
	}
	return strings.Join(words, "/")
}

// Lower converts ASCII letters to lower case, as DNS and proxies do. strings.ToLower would change bytes that
// are not valid UTF-8.
func Lower(text string) string {
	isUpper := func(c rune) bool { return 'A' <= c && c <= 'Z' }
	if !strings.ContainsFunc(text, isUpper) {
		return text
	}
	out := []byte(text)
	for i, c := range out {
		if isUpper(rune(c)) {
			out[i] = c + 'a' - 'A'
		}
	}
	return string(out)
}

// Form decodes a name or value of a query, in which "+" is a space.
func Form(text string) string {
	return Unescape(strings.ReplaceAll(text, "+", " "))
}

// Unescape decodes escapes of the form %HH once. Invalid escapes stay unchanged.
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

// HexDigit returns the value of the hexadecimal digit c, or -1.
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
