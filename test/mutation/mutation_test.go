package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tree is a module with one function, one test of it, and faults: the text of a file of faults.
func tree(t *testing.T, faults string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":                        "module example.com/sum\n\ngo 1.26\n",
		"sum.go":                        "package sum\n\nfunc Sum(a, b int) int {\n\tif a > 100 {\n\t\tselect {}\n\t}\n\treturn a + b\n}\n",
		"sum_test.go":                   "package sum\n\nimport \"testing\"\n\nfunc TestSum(t *testing.T) {\n\tif Sum(1, 2) != 3 {\n\t\tt.Error()\n\t}\n}\n",
		"test/mutation/faults/all.yaml": "area: Sums\ntests: [.]\nfaults:\n" + faults,
		"docs/trust.md":                 "before\n" + tableStart + "old\n" + tableEnd + "after\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("git", "init", "-q")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return root
}

// TestWhatBecomesOfFaults plants faults into a small module.
func TestWhatBecomesOfFaults(t *testing.T) {
	t.Parallel()
	root := tree(t, `
- {fault: subtracts, file: sum.go, old: a + b, new: a - b}
- {fault: sums are large, file: sum.go, old: a > 100, new: a > 99}
- {fault: hangs, file: sum.go, old: a > 100, new: a > 0, timeout: 1s}
- {fault: does not compile, file: sum.go, old: a + b, new: a + c}
- {fault: is gone, file: sum.go, old: a / b, new: a * b}
- {fault: is there twice, file: sum.go, old: int, new: int64}
`)
	was, _ := os.ReadFile(filepath.Join(root, "sum.go"))
	var out bytes.Buffer
	err := run(context.Background(), root, &out, "", true, time.Minute)
	if err == nil || !strings.Contains(err.Error(), "sums are large") || strings.Contains(err.Error(), "subtracts") {
		t.Errorf("the error must list what was not noticed, and only that: %v", err)
	}
	text := out.String()
	for fault, want := range map[string]string{
		"subtracts": "noticed by TestSum", "sums are large": "NOT NOTICED by .", "hangs": "noticed by TestSum",
		"does not compile": "NOT PLANTED: exit status 1", "is gone": "NOT PLANTED: sum.go: the text to replace is not there",
		"is there twice": "NOT PLANTED: sum.go: the text to replace is not there, or more than once",
	} {
		_, is, _ := strings.Cut(text, "Sums: "+fault+"\n")
		if is = strings.TrimSpace(is); !strings.HasPrefix(is, want) {
			t.Errorf("%s: want %q in:\n%s", fault, want, text)
		}
	}
	if is, _ := os.ReadFile(filepath.Join(root, "sum.go")); !bytes.Equal(was, is) {
		t.Error("the file of the user changed")
	}
	if page, _ := os.ReadFile(filepath.Join(root, "docs/trust.md")); !bytes.Contains(page, []byte("old\n")) {
		t.Errorf("the table was written although faults were not noticed:\n%s", page)
	}
}

// TestTheTableIsWritten writes it if all faults are noticed.
func TestTheTableIsWritten(t *testing.T) {
	t.Parallel()
	root := tree(t, "- {fault: subtracts, file: sum.go, old: a + b, new: a - b}")
	if err := run(context.Background(), root, &bytes.Buffer{}, "", true, time.Minute); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/trust.md"))
	if err != nil {
		t.Fatal(err)
	}
	if text := string(page); !strings.Contains(text, "| Sums | subtracts | `sum.go` | `TestSum` |") || strings.Contains(text, "old\n") ||
		!strings.HasPrefix(text, "before\n") || !strings.HasSuffix(text, "after\n") {
		t.Errorf("written:\n%s", text)
	}
}

// TestAPatternWithoutTestsIsAnError: a fault that no test is run for is not one that the tests overlook.
func TestAPatternWithoutTestsIsAnError(t *testing.T) {
	t.Parallel()
	root := tree(t, "- {fault: subtracts, file: sum.go, old: a + b, new: a - b, tests: [.], run: TestOther}")
	err := run(context.Background(), root, &bytes.Buffer{}, "", false, time.Minute)
	if err == nil || !strings.Contains(err.Error(), `no test matches "TestOther"`) {
		t.Error(err)
	}
}

// TestFaultsOfTheTree reads the faults of this repository: at least 60, each with all that it needs.
func TestFaultsOfTheTree(t *testing.T) {
	all, err := load("faults")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 60 {
		t.Errorf("only %d faults", len(all))
	}
	for _, f := range all {
		if _, err := os.Stat(filepath.Join("../..", f.File)); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}
