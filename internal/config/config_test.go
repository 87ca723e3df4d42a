package config

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what is said of testdata/*.yaml into the *.txt beside them")

// fixtures returns the files in testdata whose names end in suffix, by name. Problems contain the names
// without the folder.
func fixtures(tb testing.TB, suffix string) (files []File) {
	tb.Helper()
	names, err := filepath.Glob(filepath.Join("testdata", "*"+suffix))
	if err != nil || len(names) == 0 {
		tb.Fatalf("no testdata/*%s (%v); want no error and len(names) above 0", suffix, err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		must(tb, err)
		files = append(files, File{Name: filepath.Base(name), Data: data})
	}
	return files
}

// golden compares the problems of a file with the .txt beside it; without one there must be no problem.
func golden(t *testing.T, f File, problems Problems) {
	t.Helper()
	name := filepath.Join("testdata", strings.TrimSuffix(f.Name, ".yaml")+".txt")
	got := problems.Error()
	if got != "" {
		got += "\n"
	}
	switch {
	case *update && got == "":
		_ = os.Remove(name)
	case *update:
		write(t, name, got)
	}
	want, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		t.Fatalf("got %v; want os.IsNotExist(err) true", err)
	}
	if got != string(want) {
		t.Errorf("said:\n%s\nwant (go test -update writes it):\n%s", got, want)
	}
}

func TestGoodFilesAreAccepted(t *testing.T) {
	for _, f := range fixtures(t, ".good.yaml") {
		t.Run(f.Name, func(t *testing.T) {
			s, problems := Compile([]File{f}, Options{})
			if s == nil || problems.Bad() {
				t.Fatalf("refused:\n%v; want no mistakes", problems)
			}
			golden(t, f, problems)
		})
	}
}

func TestBadFilesAreRefusedWithEveryMistake(t *testing.T) {
	for _, f := range fixtures(t, ".bad.yaml") {
		t.Run(f.Name, func(t *testing.T) {
			s, problems := Compile([]File{f}, Options{})
			if s != nil || !problems.Bad() {
				t.Fatalf("accepted:\n%v", problems)
			}
			golden(t, f, problems)
		})
	}
}
