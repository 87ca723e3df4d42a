// Package docgen generates a part of docs/: docs/reference from the schema of the configuration, the command line and
// the metrics, and docs/pictures from the algorithms. Tests compare the files with the generated
// text; `make docs` writes the files.
package docgen

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// Check fails the test unless text is the content of the file name below docs/. If the environment variable
// UPDATE_DOCS is set, it writes the file first. root is the path from the test's package to the top of the
// module.
func Check(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, "docs", name)
	if os.Getenv("UPDATE_DOCS") != "" {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	switch have, err := os.ReadFile(path); {
	case err != nil:
		t.Errorf("%v; run make docs to write it", err)
	case string(have) != text:
		t.Errorf("docs/%s differs from the code; run make docs to write it again", name)
	}
}

// EachPage calls check with the path below root, and the text, of each Markdown page of the project.
func EachPage(t *testing.T, root string, check func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, root+"/")
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || name == "dist"):
			return fs.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil {
			check(name, string(text))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Anchor returns the fragment of a heading, as GitHub makes it.
func Anchor(heading string) string {
	return strings.ReplaceAll(unlinked.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), ""), " ", "-")
}

var unlinked = regexp.MustCompile(`[^\p{L}\p{N}_ -]`) // the characters that a fragment lacks

type page struct {
	strings.Builder
	inTable bool // the last line belongs to a table
}

func (p *page) line(parts ...string) {
	p.inTable = false
	for _, part := range parts {
		p.WriteString(part)
	}
	p.WriteByte('\n')
}

func (p *page) begin(title, source string) {
	p.line("# ", title)
	p.line()
	p.line("`make docs` generates this page from ", source, ".")
	p.line()
}

const lineWidth = 100

// marker matches a word that would start a list, a heading or a table at the start of a line.
var marker = regexp.MustCompile(`^(-+$|[+*]$|[>|]|#+$|\d+[.)]$)`)

// prose writes text in wrapped lines. head starts the first line; the others are indented to follow it.
func (p *page) prose(head, text string) {
	line, indent := head, strings.Repeat(" ", utf8.RuneCountInString(head))
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > lineWidth && !marker.MatchString(word):
			p.line(line)
			line = indent + word
		default:
			line += " " + word
		}
	}
	p.line(line)
}

// row writes a row of a table: a name, short facts, and its meaning. It leaves out empty facts. heads are the titles of
// the columns, which precede the first row.
func (p *page) row(heads, name, meaning string, facts ...string) {
	if !p.inTable {
		p.line("| ", heads, " |\n|---|---|---|")
	}
	facts = slices.DeleteFunc(facts, func(fact string) bool { return fact == "" })
	cells := []string{name, strings.Join(facts, "; "), strings.Join(strings.Fields(meaning), " ")}
	for i := range cells {
		cells[i] = strings.ReplaceAll(cells[i], "|", `\|`)
	}
	p.line(strings.ReplaceAll("| "+strings.Join(cells, " | ")+" |", "  ", " "))
	p.inTable = true
}

func code(s string) string { return "`" + s + "`" }
