package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

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

func TestOutcomesOfFaults(t *testing.T) {
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
	err := run(context.Background(), root, &out, options{write: true, timeout: time.Minute})
	if err == nil || !strings.Contains(err.Error(), "sums are large") || strings.Contains(err.Error(), "subtracts") {
		t.Errorf("got the error %v, want one that lists the faults which were not noticed, and no others", err)
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
		t.Error("the run changed sum.go in the original tree, want changes only in the copy")
	}
	page, _ := os.ReadFile(filepath.Join(root, "docs/trust.md"))
	if !bytes.Contains(page, []byte("2 of 6 faults have a row")) || bytes.Contains(page, []byte("sums are large")) {
		t.Errorf("want a row for each fault that was noticed, and no other row:\n%s", page)
	}
}

// TestTheTableIsWritten plants the fault without a row and writes its row, keeps the other row, and removes the row of a
// fault that no longer exists.
func TestTheTableIsWritten(t *testing.T) {
	t.Parallel()
	root := tree(t, "- {fault: subtracts, file: sum.go, old: a + b, new: a - b}\n- {fault: multiplies, file: sum.go, old: a + b, new: a * b}")
	page := filepath.Join(root, "docs/trust.md")
	other := "| Sums | multiplies | `sum.go` | `TestOther` | 3 s |\n"
	text := "before\n" + tableStart + "old\n" + other + "| Sums | is gone | `sum.go` | `TestSum` | 3 s |\n" + tableEnd + "after\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(context.Background(), root, &bytes.Buffer{}, options{new: true, write: true, timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	is := regexp.MustCompile(`(?m) \d+ s \|$`).ReplaceAllString(string(got), " n s |")
	is = regexp.MustCompile(`\d{4}-\d\d-\d\d`).ReplaceAllString(is, "today")
	want := "before\n" + tableStart + "2 of 2 faults have a row: planted, and noticed. The newest rows are of today.\n\n" +
		"| area | fault | file | noticed first by | after |\n|---|---|---|---|---|\n" +
		"| Sums | subtracts | `sum.go` | `TestSum` | n s |\n" + strings.Replace(other, "3 s", "n s", 1) + tableEnd + "after\n"
	if is != want {
		t.Errorf("got:\n%s\nwant:\n%s", is, want)
	}
}

// TestAPatternWithoutTestsIsAnError requires an error if the pattern of a fault selects no test. Such a fault
// must not count as unnoticed.
func TestAPatternWithoutTestsIsAnError(t *testing.T) {
	t.Parallel()
	root := tree(t, "- {fault: subtracts, file: sum.go, old: a + b, new: a - b, tests: [.], run: TestOther}")
	err := run(context.Background(), root, &bytes.Buffer{}, options{timeout: time.Minute})
	if err == nil || !strings.Contains(err.Error(), `no test matches "TestOther"`) {
		t.Errorf("got the error %v, want one that no test matches TestOther", err)
	}
}

// TestFaultsOfTheTree checks the faults of this repository: there are at least 60, each is complete, its file
// contains the text that it replaces once, and its pattern matches a test.
func TestFaultsOfTheTree(t *testing.T) {
	all, err := load("faults")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string][]string{} // the names of the tests, by package
	if len(all) < 60 {
		t.Errorf("only %d faults, want at least 60", len(all))
	}
	for _, f := range all {
		data, err := os.ReadFile(filepath.Join("../..", f.File))
		if err == nil {
			_, err = f.apply(data)
		}
		if err != nil {
			t.Errorf("%s: %v", f, err)
		}
		name, _, _ := strings.Cut(f.Run, "/")
		for _, pkg := range f.Tests {
			if tests[pkg] == nil {
				tests[pkg] = testsOf(t, pkg)
			}
		}
		if !slices.ContainsFunc(f.Tests, func(pkg string) bool {
			return slices.ContainsFunc(testsOf(t, pkg), regexp.MustCompile(name).MatchString)
		}) {
			t.Errorf("%s: no test of %v matches %q", f, f.Tests, f.Run)
		}
	}
}

var testName = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

func testsOf(t *testing.T, pkg string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testName.FindAllSubmatch(data, -1) {
			names = append(names, string(m[1]))
		}
	}
	return names
}
