package descriptors

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

// How a pattern matches the value of an entry.
type How uint8

// They win over each other in this order: an exact value, the longest prefix, the longest suffix,
// the first declared of wildcards and regular expressions, a key without a value.
const (
	Exact How = iota
	HasPrefix
	HasSuffix
	Wildcard // each "*" is any text
	Regex
	Any
)

var howNames = [...]string{"exact", "prefix", "suffix", "wildcard", "regex", "any"}

// String is the name in lower case.
func (h How) String() string { return howNames[h] }

// Pattern is what one entry of a descriptor is compared with. With a "*" in the Key it is a Wildcard
// of key and value, whatever How says.
type Pattern struct {
	Key  string
	How  How
	Text string // of the value; "" with Any

	regex *regexp.Regexp // with Regex
}

// ValuePattern is the Pattern of a value as the reference server writes it: "" is any, and each "*" in
// it any text.
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
	// maxRegex bounds a regular expression, in bytes.
	maxRegex = 1000
	// maxRegexSteps bounds its program, as Envoy does: matching takes, at worst, as many steps for each
	// byte of a value, and a client may send 60 KiB. 200 of them came to 15 ms.
	maxRegexSteps = 200
)

// RegexPattern is the Pattern of a regular expression (RE2), which must match a whole value. A "."
// matches every character, newlines too, and a byte that is no UTF-8 is one character: what a client
// sends gets by an expression only where that says so. The error says what is wrong with it.
func RegexPattern(key, expression string) (Pattern, error) {
	if len(expression) > maxRegex {
		return Pattern{}, fmt.Errorf("has %d bytes, the most is %d", len(expression), maxRegex)
	}
	if _, err := syntax.Parse(expression, syntax.Perl); err != nil { // alone, or "a)(b" would be taken
		return Pattern{}, fmt.Errorf("is no regular expression (RE2): %s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	whole := `\A(?s:` + expression + `)\z`
	parsed, err := syntax.Parse(whole, syntax.Perl)
	if err != nil {
		return Pattern{}, fmt.Errorf("is no regular expression (RE2): %w", err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return Pattern{}, fmt.Errorf("cannot be compiled: %w", err)
	}
	if n := len(program.Inst); n > maxRegexSteps {
		return Pattern{}, fmt.Errorf("comes to %d steps, the most is %d: each repetition such as {1,36} counts as often", n, maxRegexSteps)
	}
	regex, err := regexp.Compile(whole)
	return Pattern{Key: key, How: Regex, Text: expression, regex: regex}, err
}

// Shown is the pattern for people: key, key=value, or key~expression.
func (p *Pattern) Shown() string {
	switch {
	case p.Key == "": // a wildcard of key and value
		return p.value()
	case p.How == Any:
		return Printable(p.Key)
	case p.How == Regex:
		return Printable(p.Key) + p.value()
	default:
		return Printable(p.Key) + "=" + p.value()
	}
}

// value is the part of Shown that is not the key.
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
