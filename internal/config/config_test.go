package config

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the problems of testdata/*.yaml, and what they compile to, to the *.txt files beside them")

// fixtures returns the files in testdata whose names end in suffix, named without the folder.
func fixtures(tb testing.TB, suffix string) (files []File) {
	tb.Helper()
	names, err := filepath.Glob(filepath.Join("testdata", "*"+suffix))
	if err != nil || len(names) == 0 {
		tb.Fatalf("found no testdata/*%s (%v); want at least one", suffix, err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		must(tb, err)
		files = append(files, File{Name: filepath.Base(name), Data: data})
	}
	return files
}

// golden compares text with the file name in testdata. If there is no such file, there must be no text.
func golden(t *testing.T, name, text string) {
	t.Helper()
	name = filepath.Join("testdata", name)
	switch {
	case *update && text == "":
		_ = os.Remove(name)
	case *update:
		write(t, name, text)
	}
	want, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		t.Fatalf("read %s: %v; want its content, or that it does not exist", name, err)
	}
	if text != string(want) {
		t.Errorf("got\n%s\nwant (go test -update writes it)\n%s", text, want)
	}
}

func goldenProblems(t *testing.T, f File, problems Problems) {
	t.Helper()
	text := problems.Error()
	if text != "" {
		text += "\n"
	}
	golden(t, strings.TrimSuffix(f.Name, ".yaml")+".txt", text)
}

func TestGoodFilesAreAccepted(t *testing.T) {
	for _, f := range fixtures(t, ".good.yaml") {
		t.Run(f.Name, func(t *testing.T) {
			s, problems := Compile([]File{f}, Options{})
			if s == nil || problems.Bad() {
				t.Fatalf("got the problems\n%v\nwant no mistakes", problems)
			}
			goldenProblems(t, f, problems)
			golden(t, strings.TrimSuffix(f.Name, ".yaml")+".limits.txt", described(s))
		})
	}
}

func TestBadFilesAreRefusedWithEveryMistake(t *testing.T) {
	for _, f := range fixtures(t, ".bad.yaml") {
		t.Run(f.Name, func(t *testing.T) {
			s, problems := Compile([]File{f}, Options{})
			if s != nil || !problems.Bad() {
				t.Fatalf("got a snapshot: %t, problems\n%v\nwant no snapshot, and a mistake", s != nil, problems)
			}
			goldenProblems(t, f, problems)
		})
	}
}
