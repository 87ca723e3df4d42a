package simulate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// scanner reads one JSON value from a line, strictly. After a mistake its methods do nothing, so that the
// caller checks for mistakes only once, at the end. Bytes that are not UTF-8 become U+FFFD. A string is a part of the
// line, unless it has escapes, which are rare. encoding/json would copy all strings, and take much longer for traces of
// millions of lines.
type scanner struct {
	text    string
	in      jsontext.Decoder
	content bytes.Buffer // text
	at      int          // where the last value or bracket begins
	err     error
}

// reset begins to read text.
func (s *scanner) reset(text string) {
	s.text, s.at, s.err = text, 0, nil
	s.content.Reset()
	s.content.WriteString(text)
	s.in.Reset(&s.content, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
}

func (s *scanner) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("column %d: "+format, append([]any{s.at + 1}, args...)...)
	}
}

// value reads a value or a name of any kind, and returns its text.
func (s *scanner) value() string {
	if s.err != nil {
		return ""
	}
	text, err := s.in.ReadValue()
	if s.check(err); err != nil {
		return ""
	}
	end := int(s.in.InputOffset())
	s.at = end - len(text)
	return s.text[s.at:end]
}

// bracket reads a bracket, which the caller has seen.
func (s *scanner) bracket() {
	_, err := s.in.ReadToken()
	s.check(err)
	s.at = int(s.in.InputOffset()) - 1
}

func (s *scanner) check(err error) {
	if wrong, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		s.at = int(wrong.ByteOffset)
		s.fail("%w", wrong.Err)
	} else if err != nil {
		s.err = err
	}
}

// expects reports whether the next value is of one of kinds, which what describes.
func (s *scanner) expects(what string, kinds ...jsontext.Kind) bool {
	if s.err == nil && slices.Contains(kinds, s.in.PeekKind()) {
		return true
	}
	found := s.value()
	s.fail("expected %s, found %s", what, shortened(found))
	return false
}

func shortened(text string) string {
	if i := strings.IndexAny(text, ",]} \t"); i >= 0 {
		text = text[:max(1, i)]
	}
	const most = 20
	if len(text) > most {
		text = text[:most] + "…"
	}
	return fmt.Sprintf("%+q", text)
}

func (s *scanner) openObject() {
	if s.expects("an object", '{') {
		s.bracket()
	}
}

func (s *scanner) openList() {
	if s.expects("a list", '[') {
		s.bracket()
	}
}

// more reports whether another element follows. If none follows, it reads the bracket that ends the object or list.
func (s *scanner) more() bool {
	if s.err != nil {
		return false
	}
	switch s.in.PeekKind() {
	case ']', '}':
		s.bracket()
		return false
	case 0:
		s.value() // there is a mistake, which it finds
		return false
	}
	return true
}

// str reads a string or a name. If possible, the result is a part of the line.
func (s *scanner) str() string {
	if !s.expects("a string", '"') {
		return ""
	}
	return unquoted(s.value())
}

// unquoted returns the string that has this JSON text, or "" for the text "".
func unquoted(text string) string {
	if text == "" {
		return ""
	}
	if inside := text[1 : len(text)-1]; !strings.Contains(inside, `\`) && utf8.ValidString(inside) {
		return inside
	}
	decoded, _ := jsontext.AppendUnquote(nil, text) // its error is that of invalid UTF-8, which it replaces
	return string(decoded)
}

// integer reads a whole number; a number out of range becomes the nearest one in range.
func (s *scanner) integer() int64 {
	if !s.expects("a whole number", '0') {
		return 0
	}
	text := s.value()
	n, err := strconv.ParseInt(text, 10, 64)
	if errors.Is(err, strconv.ErrSyntax) {
		s.fail("expected a whole number, found %s", shortened(text))
	}
	return n
}

func (s *scanner) boolean() bool { return s.expects("true or false", 't', 'f') && s.value() == "true" }

// end returns the first mistake, or an error if something follows the value.
func (s *scanner) end() error {
	if s.err != nil {
		return s.err
	}
	after := s.value()
	if errors.Is(s.err, io.EOF) {
		return nil
	}
	s.fail("expected the end of the line, found %s", shortened(after))
	return s.err
}
