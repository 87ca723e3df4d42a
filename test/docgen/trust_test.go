package docgen_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/test/docgen"
)

// TestEvidenceExists fails if docs/trust.md names a test or a fuzz target that does not exist, if a row of a table with the
// column "evidence" names no test and does not say "not tested", or if a test that runs the commands of a page does not
// exist.
func TestEvidenceExists(t *testing.T) {
	defined := make(map[string]bool)
	declaration := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != root:
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, found := range declaration.FindAllSubmatch(text, -1) {
			defined[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs/trust.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := evidence.FindAllStringSubmatch(string(text), -1)
	if len(named) < 200 {
		t.Errorf("docs/trust.md names %d tests, want at least 200: does the pattern still match?", len(named))
	}
	for _, name := range named {
		if !defined[name[1]] && name[1] != "TestName" {
			t.Errorf("docs/trust.md names %s, which does not exist: name the test that took its place", name[1])
		}
	}
	docgen.EachPage(t, root, func(path, text string) {
		for _, run := range regexp.MustCompile(`(?m)^ *<!-- (?:all )?run by (\w+) -->$`).FindAllStringSubmatch(text, -1) {
			if !defined[run[1]] {
				t.Errorf("%s: its commands are run by %s, which does not exist", path, run[1])
			}
		}
	})
	needed := false // the current table has the column "evidence"
	for line := range strings.Lines(string(text)) {
		isRow := strings.HasPrefix(line, "| ")
		switch {
		case isRow && strings.HasSuffix(line, "| evidence |\n"):
			needed = true
		case !strings.HasPrefix(line, "|"):
			needed = false
		case isRow && needed && !evidence.MatchString(line) && !strings.Contains(line, "not tested"):
			t.Errorf("a row of docs/trust.md has no evidence; name a test, or write \"not tested\" and why:\n%s", line)
		}
	}
}

var evidence = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
