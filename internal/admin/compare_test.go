package admin

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/config"
)

// A reload compiles all limits again. The comparison must count only the limits that differ.
func TestComparisonAfterAReloadOfOneFile(t *testing.T) {
	folder := t.TempDir()
	write := func(file string, rate int, more string) {
		t.Helper()
		text := fmt.Sprintf("domain: edge\ndescriptors:\n  - {key: %s, rate_limit: {unit: day, requests_per_unit: %d}}\n%s", file, rate, more)
		if err := os.WriteFile(filepath.Join(folder, file+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"a", "b", "c"} {
		write(file, 1, "")
	}
	first, problems := config.Load([]string{folder}, config.Options{})
	if problems.Bad() {
		t.Fatalf("got %v; want no mistakes", problems)
	}
	for _, step := range []struct {
		what                   string
		change                 func()
		added, removed, edited int
	}{
		{"a number", func() { write("b", 2, "") }, 0, 0, 1},
		{"a limit more, before others", func() { write("a", 1, "  - {key: z, rate_limit: {unit: day, requests_per_unit: 3}}\n") }, 1, 0, 0},
		{"a limit less, and a number", func() { write("a", 5, "") }, 0, 1, 1},
		{"a limit with another name", func() {
			write("c", 1, "---\ndomain: other\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 3}}]\n")
		}, 1, 0, 0},
		{"a domain less", func() { write("c", 1, "") }, 0, 1, 0},
	} {
		step.change()
		next, problems := config.Load([]string{folder}, config.Options{})
		if problems.Bad() {
			t.Fatalf("got %v; want no mistakes", problems)
		}
		if c := Compare(first, next); c.Added != step.added || c.Removed != step.removed || c.Edited != step.edited {
			t.Errorf("%s: %d added, %d removed, %d edited, with the rows %+v; want %d, %d and %d", step.what, c.Added, c.Removed, c.Edited, c.Rows, step.added, step.removed, step.edited)
		}
		first = next
	}
}
