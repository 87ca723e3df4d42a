// Package docgen writes the part of docs/ that says what the code says: docs/reference from the
// schema of the configuration, the command line, the description of the HTTP API and the metrics,
// and docs/pictures from the algorithms. Tests hold the files to it; `make docs` writes them.
package docgen

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Hold wants the file name, below docs/, to have this text; with the variable UPDATE_DOCS it writes
// it. root leads from the test's package to that of the module.
func Hold(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, "docs", name)
	if os.Getenv("UPDATE_DOCS") != "" {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	switch have, err := os.ReadFile(path); {
	case err != nil:
		t.Errorf("%v; make docs writes it", err)
	case string(have) != text:
		t.Errorf("docs/%s is not what the code says; make docs writes it", name)
	}
}

// page is Markdown in the making.
type page struct{ strings.Builder }

func (p *page) line(parts ...string) {
	for _, part := range parts {
		p.WriteString(part)
	}
	p.WriteByte('\n')
}

// begin writes the head of a generated page.
func (p *page) begin(title, source string) {
	p.line("# ", title)
	p.line()
	p.line("`make docs` generates this page from ", source, ".")
	p.line()
}

// row writes a row of a table.
func (p *page) row(cells ...string) {
	for i := range cells {
		cells[i] = strings.ReplaceAll(strings.Join(strings.Fields(cells[i]), " "), "|", `\|`)
	}
	p.line("| ", strings.Join(cells, " | "), " |")
}

// table begins a table.
func (p *page) table(heads ...string) {
	p.row(heads...)
	p.line(strings.Repeat("|---", len(heads)), "|")
}

func code(s string) string { return "`" + s + "`" }
