// Package descriptors finds what is configured for a descriptor, and makes the keys of buckets.
//
// A proxy sends descriptors: ordered lists of entries, each a key and a value. A Tree holds the patterns of one
// domain, and what descriptors find there, such as limits. Tree.Match finds the Node of a descriptor without
// allocating. Keys makes the key of a limit's bucket from the values of the entries.
//
// Keys and values are raw bytes that clients choose. They need not be valid UTF-8.
package descriptors

import (
	"errors"
	"fmt"
	"strings"
)

// Entry is one key=value pair of a descriptor. Both are raw bytes.
type Entry struct {
	Key, Value string
}

// Parse parses the text form of a descriptor that the command line uses: key=value[,key=value]… In keys and
// values, "\," is a comma, "\=" is an equals sign and "\\" is a backslash.
func Parse(text string) ([]Entry, error) {
	var entries []Entry
	var key, word strings.Builder
	inValue := false
	flush := func() error {
		if !inValue {
			return fmt.Errorf("descriptor %q: %q has no value; write key=value[,key=value]…", text, word.String())
		}
		if key.Len() == 0 {
			return fmt.Errorf("descriptor %q: entry %d has an empty key", text, len(entries)+1)
		}
		entries = append(entries, Entry{key.String(), word.String()})
		key.Reset()
		word.Reset()
		inValue = false
		return nil
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			if i++; i == len(text) {
				return nil, fmt.Errorf(`descriptor %q ends in "\"; write "\\" for a backslash`, text)
			}
			word.WriteByte(text[i])
		case c == ',':
			if err := flush(); err != nil {
				return nil, err
			}
		case c == '=' && !inValue:
			key.WriteString(word.String())
			word.Reset()
			inValue = true
		default:
			word.WriteByte(c)
		}
	}
	if text == "" {
		return nil, errors.New("descriptor is empty; write key=value[,key=value]…")
	}
	if err := flush(); err != nil {
		return nil, err
	}
	return entries, nil
}

// Format returns the text form of entries for display. Printable formats each key and value. Parse can parse the
// result if no key is empty, and all keys and values are printable ASCII of at most 128 bytes.
func Format(entries []Entry) string {
	var b strings.Builder
	for i, e := range entries {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(formatKey.Replace(Printable(e.Key)))
		b.WriteByte('=')
		b.WriteString(strings.ReplaceAll(Printable(e.Value), ",", `\,`))
	}
	return b.String()
}

var formatKey = strings.NewReplacer(",", `\,`, "=", `\=`)

// Printable returns bytes from a client in a form that is safe to display. Printable ASCII stays as it is,
// except double quotes and backslashes. These and all other bytes are escaped. If s is longer than 128 bytes, "…"
// replaces the rest.
func Printable(s string) string {
	const most = 128
	cut := ""
	if len(s) > most {
		s, cut = s[:most], "…"
	}
	q := fmt.Sprintf("%+q", s)
	return q[1:len(q)-1] + cut
}

// PrintableList joins the Printable forms of texts.
func PrintableList(texts []string, separator string) string {
	shown := make([]string, len(texts))
	for i, text := range texts {
		shown[i] = Printable(text)
	}
	return strings.Join(shown, separator)
}
