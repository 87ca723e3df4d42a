package descriptors

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

// How is the way in which a pattern matches the value of an entry.
type How uint8

// The ways to match, in order of precedence: an exact value, the longest prefix, the longest suffix, the
// first declared wildcard or regular expression, and a key without a value.
const (
	Exact How = iota
	HasPrefix
	HasSuffix
	Wildcard // each "*" matches any text
	Regex
	Any
)

var howNames = [...]string{"exact", "prefix", "suffix", "wildcard", "regex", "any"}

func (h How) String() string { return howNames[h] }

// Pattern is compared with one entry of a descriptor. If Key contains a "*", How is ignored, and the Pattern
// is a Wildcard of key and value.
type Pattern struct {
	Key  string
	How  How
	Text string // the text of the value; "" for Any

	regex *regexp.Regexp // set only for Regex
}

// ValuePattern returns the Pattern of a value in the reference server's notation: "" matches any value, and each "*"
// matches any text.
func ValuePattern(key, value string) Pattern {
	switch {
	case value == "":
		return Pattern{Key: key, How: Any}
	case strings.Contains(value, "*"):
		return Pattern{Key: key, How: Wildcard, Text: value}
	default:
		return Pattern{Key: key, How: Exact, Text: value}
	}
}

const (
	// maxRegex bounds the length of a regular expression, in bytes.
	maxRegex = 1000
	// maxRegexSteps bounds the size of a compiled expression, as in Envoy. In the worst case, matching takes
	// that many steps for each byte of a value, and a client may send 60 KiB. With 200 steps such a match took 50 ms of
	// processor time.
	maxRegexSteps = 200
)

// RegexPattern returns the Pattern of a regular expression (RE2), which must match a whole value. A "." matches every
// character, including newlines, and each byte that is not valid UTF-8 counts as one character. So a client cannot
// evade an expression with unusual bytes. An error is the end of a sentence that starts with a name of the expression,
// such as "needs 300 steps".
func RegexPattern(key, expression string) (Pattern, error) {
	if len(expression) > maxRegex {
		return Pattern{}, fmt.Errorf("has %d bytes; the maximum is %d", len(expression), maxRegex)
	}
	if _, err := syntax.Parse(expression, syntax.Perl); err != nil { // parsed alone, because "a)(b" is valid inside whole
		return Pattern{}, fmt.Errorf("is not a regular expression (RE2): %s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	whole := `\A(?s:` + expression + `)\z`
	parsed, err := syntax.Parse(whole, syntax.Perl)
	if err != nil {
		return Pattern{}, fmt.Errorf("is not a regular expression (RE2): %w", err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return Pattern{}, fmt.Errorf("cannot be compiled: %w", err)
	}
	if n := len(program.Inst); n > maxRegexSteps {
		return Pattern{}, fmt.Errorf("needs %d steps, but the maximum is %d; write a simpler one, because a repetition such as {1,36} counts 36 times", n, maxRegexSteps)
	}
	regex, err := regexp.Compile(whole)
	return Pattern{Key: key, How: Regex, Text: expression, regex: regex}, err
}

// InOrder reports whether p is compared with values in the order in which it and others were declared.
func (p *Pattern) InOrder() bool { return p.How == Wildcard || p.How == Regex }

// Shown returns the pattern for display: key, key=value, key~expression or, for a key with a "*", key_value.
func (p *Pattern) Shown() string {
	switch {
	case p.Key == "": // a wildcard that covers key and value
		return p.value()
	case p.How == Any:
		return Printable(p.Key)
	case p.How == Regex:
		return Printable(p.Key) + p.value()
	default:
		return Printable(p.Key) + "=" + p.value()
	}
}

func (p *Pattern) value() string {
	text := Printable(p.Text)
	switch p.How {
	case HasPrefix:
		return text + "*"
	case HasSuffix:
		return "*" + text
	case Regex:
		return "~" + text
	case Exact, Wildcard, Any:
	}
	return text
}

// matches reports whether p, whose key has no "*" and whose How is Wildcard or Regex, matches value.
func (p *Pattern) matches(value string) bool {
	if p.regex != nil {
		return p.regex.MatchString(value)
	}
	return joined{value: value}.matches(p.Text)
}

// joined is the text key_value or, unless both is true, value alone. It does not copy the bytes.
type joined struct {
	key, value string
	both       bool
}

// matches reports whether pattern matches j. Each "*" in pattern matches any text.
func (j joined) matches(pattern string) bool {
	// The usual two-pointer algorithm: after a mismatch, the last "*" matches one more byte.
	p, s, star, mark := 0, 0, -1, 0
	for s < j.len() {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, s
			p++
		case p < len(pattern) && pattern[p] == j.at(s):
			p++
			s++
		case star >= 0:
			mark++
			p, s = star+1, mark
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

func (j joined) len() int {
	if !j.both {
		return len(j.value)
	}
	return len(j.key) + 1 + len(j.value)
}

func (j joined) at(i int) byte {
	switch n := len(j.key); {
	case !j.both:
		return j.value[i]
	case i < n:
		return j.key[i]
	case i == n:
		return '_'
	default:
		return j.value[i-n-1]
	}
}
