package canonical

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Trim removes blanks from both ends of a value. HTTP/1 parsers and applications remove them too, so without Trim a
// client could write one value in many ways. Blanks are all characters up to U+0020, the other spaces of Unicode, and
// the bytes 0x85 and 0xA0, which are spaces to applications that read headers as Latin-1.
func Trim(value string) string {
	if value == "" || isGraph(value[0]) && isGraph(value[len(value)-1]) { // most values
		return value
	}
	return TrimRight(TrimLeft(value))
}

// TrimLeft removes blanks from the start of a value.
func TrimLeft(value string) string {
	for value != "" && !isGraph(value[0]) {
		r, size := utf8.DecodeRuneInString(value)
		if !isBlank(r, value[:size]) {
			break
		}
		value = value[size:]
	}
	return value
}

// TrimRight removes blanks from the end of a value.
func TrimRight(value string) string {
	for value != "" && !isGraph(value[len(value)-1]) {
		r, size := utf8.DecodeLastRuneInString(value)
		if !isBlank(r, value[len(value)-size:]) {
			break
		}
		value = value[:len(value)-size]
	}
	return value
}

// isGraph reports whether c is a character of ASCII that is not blank. Most values begin and end with one.
func isGraph(c byte) bool { return '!' <= c && c <= '~' }

// isBlank reports whether r is blank. encoded has the bytes of r.
func isBlank(r rune, encoded string) bool {
	const byteOrderMark = '\ufeff' // JavaScript's trim removes it
	switch {
	case r == utf8.RuneError && len(encoded) == 1: // not UTF-8
		return encoded[0] == 0x85 || encoded[0] == 0xa0
	default:
		return r <= ' ' || unicode.IsSpace(r) || r == byteOrderMark
	}
}

// Cookie returns one form for all spellings of a cookie's value that applications treat as equal. They may decode
// percent escapes (any number of times), treat "+" as a blank, and remove quotes and blanks at the ends. ok is false
// if applications differ in what the value is, because it contains a character that RFC 6265 does not allow. For
// example, Python's http.cookies decodes "\141" in quotes, and ends a value at a blank.
func Cookie(value string) (canonical string, ok bool) {
	value = strings.Trim(value, " \t")
	if n := len(value); n > 1 && value[0] == '"' && value[n-1] == '"' {
		value = value[1 : n-1]
	}
	ok = !strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`",\`, r) })
	if ok && !strings.ContainsAny(value, "%+") && isGraphAtEnds(value) {
		return value, true
	}
	value = strings.ReplaceAll(unescapeAll(value), "+", " ")
	for before := ""; before != value; {
		before, value = value, strings.Trim(Trim(value), `"`)
	}
	return strings.ReplaceAll(value, " ", "+"), ok && !strings.Contains(value, `\`)
}

func isGraphAtEnds(value string) bool {
	return value != "" && isGraph(value[0]) && isGraph(value[len(value)-1])
}

// unescapeAll decodes escapes of the form %HH until the text has none: %2541 becomes A. So the result is the same
// however many escapes have been decoded before.
func unescapeAll(text string) string {
	if strings.IndexByte(text, '%') < 0 {
		return text
	}
	out := make([]byte, 0, len(text))
	for i := range len(text) {
		out = append(out, text[i])
		for n := len(out); n >= 3 && out[n-3] == '%'; n = len(out) {
			high, low := HexDigit(out[n-2]), HexDigit(out[n-1])
			if high < 0 || low < 0 {
				break
			}
			out = append(out[:n-3], byte(high<<4|low))
		}
	}
	return string(out)
}
