package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var (
	uses   = regexp.MustCompile(`(?m)^ *(?:- )?uses: *(.*)$`)
	action = regexp.MustCompile(`^[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	bases  = regexp.MustCompile(`(?m)^(?:ARG \w+_IMAGE=|FROM (?:--platform=\S+ )?)(\S+)`)
	base   = regexp.MustCompile(`^(?:scratch|\$\{\w+\}|\S+:\S+@sha256:[0-9a-f]{64})$`)
)

// TestActionsAndBaseImagesArePinned requires commits for actions and digests for images, because a tag can be
// moved to other code.
func TestActionsAndBaseImagesArePinned(t *testing.T) {
	workflows, err := filepath.Glob("../../.github/workflows/*")
	if err != nil || len(workflows) == 0 {
		t.Fatalf("no workflows: %v", err)
	}
	for _, file := range workflows {
		arePinned(t, file, uses, action, "owner/name@COMMIT # vX.Y.Z")
	}
	arePinned(t, "../../Dockerfile", bases, base, "image:tag@sha256:DIGEST")
}

func arePinned(t *testing.T, file string, find, pinned *regexp.Regexp, form string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := find.FindAllSubmatch(text, -1)
	if len(found) == 0 {
		t.Errorf("%s: the test found no action and no base image", file)
	}
	for _, f := range found {
		if !pinned.Match(f[1]) {
			t.Errorf("%s: %s is not pinned: write %s", file, f[1], form)
		}
	}
}
