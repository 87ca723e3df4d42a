package docgen_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/config"
)

// block is a piece of YAML on a page, with how far it is indented.
var block = regexp.MustCompile("(?ms)^( *)```yaml\n(.*?)^ *```")

// policy makes a whole policy file of a piece of one; false: it is not from a policy.
func policy(text string) (string, bool) {
	switch first, _, _ := strings.Cut(text, ":"); first {
	case "domain":
		return text, true
	case "limits":
		return "domain: x\n" + text, true
	case "- key":
		return "domain: x\ndescriptors:\n" + text, true
	default:
		return "", false
	}
}

// TestPoliciesOnPages loads every policy that a page shows.
func TestPoliciesOnPages(t *testing.T) {
	loaded := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2 {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		page, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, found := range block.FindAllStringSubmatch(string(page), -1) {
			text, ok := policy(strings.ReplaceAll("\n"+found[2], "\n"+found[1], "\n")[1:])
			if !ok {
				continue
			}
			loaded++
			file := filepath.Join(t.TempDir(), "limits.yaml")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				return err
			}
			if _, problems := config.Load([]string{file}, config.Options{}); len(problems) > 0 {
				t.Errorf("%s: %v\n%s", path, problems, text)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if loaded < 8 {
		t.Errorf("only %d policies have been found", loaded)
	}
}
