// Package tooltest finds the programs of other projects that tests run.
package tooltest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Path returns the path of a program: the one in an environment variable (REDIS_SERVER for redis-server), or
// the one in the project's .tools/bin, on PATH, or in Debian's folder for servers, /usr/sbin. If there is none, the
// test fails in CI, and is skipped elsewhere.
func Path(tb testing.TB, name string) string {
	tb.Helper()
	variable := strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
	named := os.Getenv(variable)
	if _, err := os.Stat(named); strings.Contains(named, "/") && err != nil {
		tb.Fatalf("%s: %v", variable, err) // the variable names a program that does not exist; using another one instead would hide that
	}
	for _, file := range []string{named, installed(tb, name), name, "/usr/sbin/" + name} {
		if path, err := exec.LookPath(file); err == nil {
			return path
		}
	}
	Missing(tb, name+" ("+variable+" may name one)")
	return ""
}

// Missing ends a test because something is missing that scripts/install-tools.sh installs.
func Missing(tb testing.TB, tool string) {
	tb.Helper()
	Impossible(tb, "there is no "+tool+" here; scripts/install-tools.sh installs it")
}

// Impossible ends a test that this machine cannot run: the test fails in CI, where the variable CI is set, and is skipped
// elsewhere.
func Impossible(tb testing.TB, reason string) {
	tb.Helper()
	if os.Getenv("CI") != "" {
		tb.Fatal(reason)
	}
	tb.Skip(reason)
}

// installed returns the path of a program that scripts/install-tools.sh has installed in the project's .tools/bin, or "".
func installed(tb testing.TB, name string) string {
	tb.Helper()
	folder, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for ; ; folder = filepath.Dir(folder) {
		file := filepath.Join(folder, ".tools", "bin", name)
		if _, err := os.Stat(file); err == nil {
			return file
		}
		if folder == filepath.Dir(folder) {
			return ""
		}
	}
}
