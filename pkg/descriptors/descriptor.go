// Package descriptors says which policies a request meets and which bucket of each is its own. A
// descriptor is what a proxy sends: entries key=value, in order. A Tree is the compiled patterns
// of one domain; matching one descriptor against it is a function of the two that allocates
// nothing.
//
// Keys and values are bytes that clients chose, not text: they need not be UTF-8, and nothing here
// assumes it.
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

// Parse reads the text form of a descriptor, key=value[,key=value]…, used on the command line.
// In a key or value, "\," stands for a comma, "\=" for an equals sign and "\\" for a backslash.
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

// Format is the text form of entries, for people: each key and value Printable. What is plain text
// throughout, and not cut, Parse reads.
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

// Printable shows bytes that a client chose: as they are where they are plain text, otherwise
// with escapes, and cut to a length that suits a log line.
func Printable(s string) string {
	const most = 128
	cut := ""
	if len(s) > most {
		s, cut = s[:most], "…"
	}
	q := fmt.Sprintf("%+q", s)
	return q[1:len(q)-1] + cut
}
