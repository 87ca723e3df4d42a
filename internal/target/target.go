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
func Path(path string) string { return resolve(Unescape(path)) }

// resolve removes empty words, "." and "..".
func resolve(path string) string {
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

// Ignore is a set of differences between two paths that an application does not see.
type Ignore uint8

// The differences.
const (
	// IgnoreCase: /LOGIN is /login.
	IgnoreCase Ignore = 1 << iota
	// IgnoreTrailingSlash: /login/ is /login.
	IgnoreTrailingSlash
	// IgnoreParameters: /login;x=1 is /login, and /a;x/..;y/login too.
	IgnoreParameters
	// IgnoreBackslash: \login is /login.
	IgnoreBackslash
)

// Fold returns the one form of all paths that differ from path, which is in the form of Path, only in
// what is ignored.
func Fold(path string, ignore Ignore) string {
	if ignore&IgnoreBackslash != 0 {
		path = strings.ReplaceAll(path, `\`, "/")
	}
	if ignore&IgnoreParameters != 0 {
		path = withoutParameters(path)
	}
	path = resolve(path) // the steps above may have made new words
	if ignore&IgnoreCase != 0 {
		path = Lower(strings.ReplaceAll(strings.ReplaceAll(path, kelvin, "k"), longS, "s"))
	}
	if ignore&IgnoreTrailingSlash != 0 && len(path) > 1 {
		path = strings.TrimSuffix(path, "/")
	}
	return path
}

// kelvin and longS are the only letters beyond ASCII that differ from an ASCII letter only in case.
const kelvin, longS = "\u212a", "\u017f"

// withoutParameters cuts each word of path at its first ";".
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

// Lower changes the case of ASCII letters only, as DNS and proxies do: strings.ToLower changes bytes
// that are not UTF-8.
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
