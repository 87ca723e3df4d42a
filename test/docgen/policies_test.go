package docgen_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/test/docgen"
)

// block matches a YAML block of a page. Its groups are the indentation and the text.
var block = regexp.MustCompile("(?ms)^( *)```yaml\n(.*?)^ *```")

// whole completes a part of a configuration file to a whole file. It returns false if text is no such part.
func whole(text string) (string, bool) {
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

func TestPoliciesOnPages(t *testing.T) {
	loaded := 0
	docgen.EachPage(t, root, func(path, page string) {
		for _, found := range block.FindAllStringSubmatch(page, -1) {
			if strings.HasPrefix(found[2], "# overlay.yaml\n") {
				overlay := config.Options{Overlay: &config.File{Name: path, Data: []byte(found[2])}}
				if _, problems := config.CompileMessages(nil, overlay); problems.Bad() {
					t.Errorf("%s: %v", path, problems)
				}
			}
			text, ok := whole(strings.ReplaceAll("\n"+found[2], "\n"+found[1], "\n")[1:])
			if !ok {
				continue
			}
			loaded++
			file := filepath.Join(t.TempDir(), "limits.yaml")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, problems := config.Load([]string{file}, config.Options{}); len(problems) > 0 {
				t.Errorf("%s: %v\n%s", path, problems, text)
			}
		}
	})
	if loaded < 8 {
		t.Errorf("only %d configurations have been found, want at least 8", loaded)
	}
}
