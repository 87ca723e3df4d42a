package arch

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

const root = "../.."

func TestExamplesAreAccepted(t *testing.T) {
	loaded := 0
	for _, path := range tracked(t) {
		if !strings.HasPrefix(path, "examples/") || filepath.Ext(path) != ".yaml" ||
			!regexp.MustCompile(`(?m)^domain:`).MatchString(read(t, path)) || strings.HasSuffix(path, ".scenarios.yaml") {
			continue // other files: Envoy's configurations, and scenarios for `rlsidecar test`
		}
		loaded++
		if _, problems := config.Load([]string{filepath.Join(root, path)}, config.Options{LogListener: true}); len(problems) > 0 {
			t.Errorf("%s: %v", path, problems)
		}
	}
	if loaded == 0 {
		t.Error("there are no examples of limits in examples/")
	}
}

// TestNoPathsOfOneMachine checks that no tracked file contains a path below one of two top folders, in which developers'
// machines have their files.
func TestNoPathsOfOneMachine(t *testing.T) {
	ofOneMachine := regexp.MustCompile(`(^|[^A-Za-z0-9_.])/(work|root)/`)
	for _, path := range tracked(t) {
		n := 0
		for line := range strings.Lines(read(t, path)) {
			n++
			if ofOneMachine.MatchString(line) {
				t.Errorf("%s:%d: %s; want no path of one machine", path, n, strings.TrimSpace(line))
			}
		}
	}
}

// TestNothingLargeIsTracked bounds the size of files, because every clone downloads each of them forever.
func TestNothingLargeIsTracked(t *testing.T) {
	const most = 1 << 20
	for _, path := range tracked(t) {
		if n := len(read(t, path)); n > most {
			t.Errorf("%s has %d bytes, at most %d are allowed", path, n, most)
		}
	}
}

func tracked(t *testing.T) []string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		tooltest.Impossible(t, fmt.Sprint("git does not list the files: ", err)) // the folder is not a clone, or git is missing
	}
	var files []string
	for name := range bytes.SplitSeq(bytes.TrimRight(out, "\x00"), []byte{0}) {
		if info, err := os.Stat(filepath.Join(root, string(name))); err == nil && info.Mode().IsRegular() {
			files = append(files, string(name))
		}
	}
	return files
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
