package simulate

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// scanner reads one JSON value from a line, strictly. After a mistake its methods do nothing, so that the
// caller checks for mistakes only once, at the end. encoding/json would take ten times as long for traces of
// millions of lines. The scanner uses it for strings with escapes or invalid UTF-8, which are rare, and to validate
// the values that it skips.
type scanner struct {
	text  string
	pos   int
	named int // the position at which the last member's name began
	err   error
}

func (s *scanner) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("column %d: "+format, append([]any{s.pos + 1}, args...)...)
	}
}

// peek skips white space and returns the next byte. It returns 0 at the end and after a mistake.
func (s *scanner) peek() byte {
	if s.err != nil {
		return 0
	}
	for ; s.pos < len(s.text); s.pos++ {
		switch c := s.text[s.pos]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) open(bracket byte) {
	if s.peek() != bracket {
		what := "an object"
		if bracket == '[' {
			what = "a list"
		}
		s.fail("expected %s, found %s", what, s.found())
		return
	}
	s.pos++
}

// more reports whether another element follows after n elements, and reads the comma before it. If none follows, it
// reads bracket, which ends the object or list.
func (s *scanner) more(n int, bracket byte) bool {
	switch c := s.peek(); {
	case s.err != nil:
		return false
	case c == bracket:
		s.pos++
		return false
	case n == 0:
		return true
	case c != ',':
		s.fail("expected , or %c, found %s", bracket, s.found())
		return false
	}
	s.pos++
	return true
}

func (s *scanner) name() string {
	s.peek()
	s.named = s.pos
	name := s.str()
	if s.peek() != ':' {
		s.fail("expected :, found %s", s.found())
		return ""
	}
	s.pos++
	return name
}

// str reads a string. If possible, the result is a part of the line.
func (s *scanner) str() string {
	if s.peek() != '"' {
		s.fail("expected a string, found %s", s.found())
		return ""
	}
	start, plain := s.pos+1, true
	for i := start; i < len(s.text); i++ {
		switch c := s.text[i]; {
		case c == '"':
			s.pos = i + 1
			if text := s.text[start:i]; plain || !strings.Contains(text, `\`) && utf8.ValidString(text) {
				return text
			}
			return s.unquote(start - 1)
		case c == '\\':
			plain = false
			i++
		case c < ' ':
			s.pos = i
			s.fail("a control character in a string; write it \\u%04x", c)
			return ""
		case c >= utf8.RuneSelf:
			plain = false
		}
	}
	s.fail("a string without an end")
	return ""
}

func (s *scanner) unquote(start int) string {
	var text string
	if err := json.Unmarshal([]byte(s.text[start:s.pos]), &text); err != nil {
		s.pos = start
		s.fail("a string with a wrong escape")
	}
	return text
}

// integer reads a whole number; a number out of range becomes the nearest one in range.
func (s *scanner) integer() int64 {
	negative, start := s.peek() == '-', s.pos
	if negative {
		s.pos++
	}
	first := s.pos
	for s.pos < len(s.text) && '0' <= s.text[s.pos] && s.text[s.pos] <= '9' {
		s.pos++
	}
	digits := s.text[first:s.pos]
	switch {
	case s.err != nil:
		return 0
	case digits == "", len(digits) > 1 && digits[0] == '0', s.pos < len(s.text) && strings.IndexByte(".eE", s.text[s.pos]) >= 0:
		s.pos = start
		s.fail("expected a whole number, found %s", s.found())
		return 0
	}
	n, inRange := int64(math.MaxInt64), fits(digits)
	if inRange {
		n = 0
		for i := range len(digits) {
			n = n*10 + int64(digits[i]-'0')
		}
	}
	switch {
	case !negative:
		return n
	case inRange:
		return -n
	default:
		return math.MinInt64
	}
}

func fits(digits string) bool {
	const most = "9223372036854775807"
	return len(digits) < len(most) || len(digits) == len(most) && digits <= most
}

func (s *scanner) boolean() bool {
	s.peek()
	rest := s.text[s.pos:]
	switch {
	case s.err != nil:
	case strings.HasPrefix(rest, "true"):
		s.pos += len("true")
		return true
	case strings.HasPrefix(rest, "false"):
		s.pos += len("false")
	default:
		s.fail("expected true or false, found %s", s.found())
	}
	return false
}

// end returns the first mistake, or an error if something follows the value.
func (s *scanner) end() error {
	if s.peek(); s.err == nil && s.pos < len(s.text) {
		s.fail("expected the end of the line, found %s", s.found())
	}
	return s.err
}

func (s *scanner) found() string {
	if s.peek(); s.pos >= len(s.text) {
		return "the end of the line"
	}
	text := s.text[s.pos:]
	if i := strings.IndexAny(text, ",]} \t"); i >= 0 {
		text = text[:max(1, i)]
	}
	const most = 20
	if len(text) > most {
		text = text[:most] + "…"
	}
	return fmt.Sprintf("%+q", text)
}

func (s *scanner) skip() string {
	s.peek()
	start := s.pos
	switch c := s.peek(); c {
	case '"':
		s.str()
	case '{', '[':
		s.skipNested()
	default:
		for s.pos < len(s.text) && strings.IndexByte(",]} \t\r\n", s.text[s.pos]) < 0 {
			s.pos++
		}
		if text := s.text[start:s.pos]; s.err == nil && !json.Valid([]byte(text)) {
			s.pos = start
			s.fail("expected a value, found %s", s.found())
		}
	}
	return s.text[start:s.pos]
}

// skipNested skips an object or a list. It uses no recursion, because a hostile line may nest deeply.
func (s *scanner) skipNested() {
	start, depth := s.pos, 0
	for s.pos < len(s.text) {
		switch s.text[s.pos] {
		case '"':
			if s.str(); s.err != nil {
				return
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		s.pos++
		if depth == 0 {
			if !json.Valid([]byte(s.text[start:s.pos])) {
				s.pos = start
				s.fail("a value that is not JSON")
			}
			return
		}
	}
	s.fail("a value without an end")
}
