package docgen_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/test/docgen"
)

const root = "../.."

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fences  = regexp.MustCompile("(?s)```.*?```")
)

// fragments returns the anchors of a page's headings, as GitHub makes them.
func fragments(text string) map[string]bool {
	found := make(map[string]bool)
	for _, h := range heading.FindAllStringSubmatch(fences.ReplaceAllString(text, ""), -1) {
		title := regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`).ReplaceAllString(h[1], "$1")
		found[docgen.Anchor(title)] = true
	}
	return found
}

func TestLinks(t *testing.T) {
	docgen.EachPage(t, root, func(path, text string) {
		for _, found := range link.FindAllStringSubmatch(fences.ReplaceAllString(text, ""), -1) {
			if strings.Contains(found[1], "://") || strings.HasPrefix(found[1], "mailto:") {
				continue
			}
			to, fragment, _ := strings.Cut(found[1], "#")
			target := path
			if to != "" {
				target = filepath.Join(filepath.Dir(path), to)
			}
			target = filepath.Join(root, target)
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the target %s does not exist", path, found[1])
				continue
			}
			if fragment == "" || filepath.Ext(target) != ".md" {
				continue
			}
			page, err := os.ReadFile(target)
			if err != nil {
				t.Fatal(err)
			}
			if !fragments(string(page))[fragment] {
				t.Errorf("%s: the link %s has no heading of that name", path, found[1])
			}
		}
	})
}

func TestSiteHasEveryPage(t *testing.T) {
	site, err := os.ReadFile(root + "/mkdocs.yml")
	if err != nil {
		t.Fatal(err)
	}
	docgen.EachPage(t, root, func(path, _ string) {
		name, ok := strings.CutPrefix(path, "docs/")
		if ok && !regexp.MustCompile(` `+regexp.QuoteMeta(name)+`(\n|$)`).Match(site) {
			t.Errorf("mkdocs.yml has no docs/%s in its nav", name)
		}
	})
}
