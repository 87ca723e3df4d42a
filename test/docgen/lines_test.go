package docgen_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rlsidecar/rlsidecar/test/docgen"
)

// onlyLink matches a list item that consists of a link: it cannot be wrapped.
var onlyLink = regexp.MustCompile(`^(?:\d+\.|-) \[[^]]*\]\([^)]*\)$`)

// TestLines checks that the lines of written pages have at most 100 characters, and that each column of a table has a
// title. Tables, code and lines that cannot be wrapped may be longer.
func TestLines(t *testing.T) {
	const most = 100
	rule := regexp.MustCompile(`^\|[-: |]+\|$`)
	docgen.EachPage(t, root, func(path, text string) {
		if strings.Contains(path, "docs/reference/") || strings.HasSuffix(path, "CHANGELOG.md") {
			return
		}
		fence, before := false, ""
		for i, line := range strings.Split(text, "\n") {
			trimmed := strings.TrimSpace(line)
			if strings.HasPrefix(trimmed, "```") {
				fence = !fence
			}
			if fence {
				continue
			}
			exempt := strings.HasPrefix(trimmed, "|") || strings.HasPrefix(trimmed, "#") || strings.HasPrefix(trimmed, "<!--") ||
				strings.HasPrefix(trimmed, "![") || !strings.Contains(strings.TrimLeft(trimmed, "-* "), " ") || onlyLink.MatchString(trimmed)
			if n := utf8.RuneCountInString(line); n > most && !exempt {
				t.Errorf("%s:%d: has %d characters; wrap lines at %d", path, i+1, n, most)
			}
			heads := strings.Split(strings.Trim(before, "|"), "|")
			if rule.MatchString(line) && slices.ContainsFunc(heads, func(head string) bool { return strings.TrimSpace(head) == "" }) {
				t.Errorf("%s:%d: a column has no title: %s", path, i, before)
			}
			before = line
		}
	})
}
