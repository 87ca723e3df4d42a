package docgen_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEvidenceExists fails if docs/trust.md or docs/claims.md names a test or a fuzz target that does not exist, or if
// a row of docs/claims.md has no evidence.
func TestEvidenceExists(t *testing.T) {
	const root = "../.."
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
	for page, least := range map[string]int{"docs/trust.md": 50, "docs/claims.md": 200} {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		named := evidence.FindAllSubmatch(text, -1)
		if len(named) < least {
			t.Errorf("%s names %d tests, want at least %d: does the pattern still match?", page, len(named), least)
		}
		for _, name := range named {
			if !defined[string(name[1])] && string(name[1]) != "TestName" {
				t.Errorf("%s names %s, which does not exist: name the test that took its place", page, name[1])
			}
		}
	}
	claims, err := os.ReadFile(filepath.Join(root, "docs/claims.md"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(claims)) {
		isRow := strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| promise |")
		if isRow && !evidence.MatchString(line) && !strings.Contains(line, "not tested") && !strings.Contains(line, "`make ") {
			t.Errorf("docs/claims.md has a row without evidence; name a test, or write \"not tested\" and why:\n%s", line)
		}
	}
}

var evidence = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
