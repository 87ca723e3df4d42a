package docgen_test

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
	"github.com/rlsidecar/rlsidecar/test/docgen"
)

func TestConfigReference(t *testing.T) {
	check(t, "config", "../../internal/config/schema.json", docgen.Config)
}

func check(t *testing.T, name, source string, of func([]byte) (string, error)) {
	t.Helper()
	data, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	text, err := of(data)
	if err != nil {
		t.Fatal(err)
	}
	docgen.Check(t, root, "reference/"+name+".md", text)
}

func TestPictures(t *testing.T) {
	files, err := docgen.Pictures()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := xml.Unmarshal([]byte(text), new(any)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		docgen.Check(t, root, "pictures/"+name, text)
	}
}

func TestManualPageIsWellFormed(t *testing.T) {
	mandoc := tooltest.Path(t, "mandoc")
	page, err := exec.Command(root+"/scripts/man.sh", "v1.2.3").Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rlsidecar.1")
	if err := os.WriteFile(file, page, 0o600); err != nil {
		t.Fatal(err)
	}
	out, _ := exec.Command(mandoc, "-T", "lint", "-W", "warning", file).CombinedOutput() // mandoc's exit code is the severity of the worst finding
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "missing date") { // the page has no date, so that builds are reproducible
			t.Errorf("mandoc: %s", line)
		}
	}
	for _, want := range []string{`\-\-on\-backend\-failure`, "RLSIDECAR_REDIS_URL", `rlsidecar serve \-\-config limits.yaml`} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page does not have %q", want)
		}
	}
}
