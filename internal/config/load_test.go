package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func loaded(t *testing.T, folder string, names ...string) (domains []string, reported string) {
	t.Helper()
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = filepath.Join(folder, name)
	}
	s, problems := Load(paths, Options{})
	if (s == nil) != problems.Bad() {
		t.Fatalf("got a snapshot: %t, problems %v; want a snapshot exactly if there is no mistake", s != nil, problems)
	}
	if s != nil {
		domains = sortedKeys(s.Domains)
	}
	return domains, strings.ReplaceAll(problems.Error(), folder, "~")
}

func TestLoadReadsFilesAndFolders(t *testing.T) {
	folder := t.TempDir()
	for name, content := range map[string]string{
		"b.yaml": "{domain: b, descriptors: [{key: a, rate_limit: {unlimited: true}}]}", // a mistake if it is read twice
		"a.yml":  "domain: a", ".c.yaml": "domain: [", "c.yaml~": "domain: [", ".c.yaml.swp": "x",
		"#c.yaml#": "x", "notes.txt": "x", "single": "domain: single", "sub.txt": "x",
	} {
		write(t, filepath.Join(folder, name), content)
	}
	must(t, os.MkdirAll(filepath.Join(folder, "sub.yaml"), 0o700))
	write(t, filepath.Join(folder, "sub.yaml", "d.yaml"), "domain: d")
	must(t, os.MkdirAll(filepath.Join(folder, "deep", "er", "..data"), 0o700))
	for name, content := range map[string]string{"e.yaml": "domain: e", "f": "domain: f", "f~": "domain: [", ".x": "domain: [", "er/g.txt": "domain: g", "er/..data/x": "domain: ["} {
		write(t, filepath.Join(folder, "deep", name), content)
	}
	must(t, os.Symlink("..", filepath.Join(folder, "deep", "er", ".circle")))
	for _, name := range []string{"one", "two", "three"} { // following all these links would find thousands of paths
		must(t, os.Symlink("..", filepath.Join(folder, "deep", "er", name)))
	}
	for _, c := range []struct {
		names []string
		want  []string
	}{
		{[]string{"."}, []string{"a", "b"}},
		{[]string{"single"}, []string{"single"}},
		{[]string{"sub.yaml", "single", "b.yaml"}, []string{"b", "d", "single"}},
		{[]string{"b.yaml", ".", "./b.yaml"}, []string{"a", "b"}},
		{[]string{"deep/**"}, []string{"e", "f", "g"}},
		{[]string{"deep/**", "deep"}, []string{"e", "f", "g"}},
	} {
		if got, reported := loaded(t, folder, c.names...); !slices.Equal(got, c.want) || reported != "" {
			t.Errorf("%v: domains %v, want %v; said %q", c.names, got, c.want, reported)
		}
	}
}

func TestLoadReportsUnreadableFiles(t *testing.T) {
	folder := t.TempDir()
	must(t, os.Mkdir(filepath.Join(folder, "empty"), 0o700))
	must(t, os.Mkdir(filepath.Join(folder, "dangling"), 0o700))
	must(t, os.Symlink("nowhere", filepath.Join(folder, "dangling", "a.yaml")))
	write(t, filepath.Join(folder, "good.yaml"), "{domain: a, descriptors: [{key: a, limit: perhaps_in_another_file}]}")
	for name, want := range map[string]string{
		"nowhere":  "~/nowhere: cannot be read: no such file or directory",
		"empty":    "~/empty: the folder has no *.yaml or *.yml file",
		"empty/**": "~/empty/**: there is no file in the folder or below it",
		"gone/**":  "~/gone/**: the folder cannot be listed: no such file or directory",
		"dangling": "~/dangling/a.yaml: cannot be read: no such file or directory",
	} {
		if _, reported := loaded(t, folder, "good.yaml", name); reported != want {
			t.Errorf("%s: said %q, want %q", name, reported, want)
		}
	}
	if _, reported := loaded(t, folder); reported != "(no path): no configuration file or folder is given; name at least one" {
		t.Errorf("got %v; want reported %q", reported, "(no path): no configuration file or folder is given; name at least one")
	}
	write(t, filepath.Join(folder, "large.yaml"), strings.Repeat("#", maxFileSize+1))
	if _, reported := loaded(t, folder, "large.yaml"); reported != "~/large.yaml: the file is larger than 16 MiB; split it" {
		t.Errorf("got %v; want reported %q", reported, "~/large.yaml: the file is larger than 16 MiB; split it")
	}
}

func TestLoadReadsFoldersBelowAFolder(t *testing.T) {
	root := t.TempDir()
	for level, folder := 1, root; level <= maxFolders+1; level++ {
		must(t, os.WriteFile(filepath.Join(folder, fmt.Sprintf("%02d", level)), fmt.Appendf(nil, "domain: d%02d\n", level), 0o600))
		folder = filepath.Join(folder, "folder")
		must(t, os.Mkdir(folder, 0o700))
	}
	s, problems := Load([]string{filepath.Join(root, "**")}, Options{})
	if problems.Bad() || len(s.Domains) != maxFolders || s.Domains["d17"] != nil {
		t.Fatalf("got %v, %v; want the domains of %d levels", s, problems, maxFolders)
	}
	link := filepath.Join(root, "folder", "link")
	must(t, os.Symlink("nowhere", link))
	if s, problems := Load([]string{filepath.Join(root, "**")}, Options{}); s != nil || len(problems) != 1 || problems[0].File != link {
		t.Errorf("got %v, %v; want one problem, of %s", s, problems, link)
	}
}

// The descriptors of files beyond keptBytes are parsed again when they are compiled.
func TestLargeFilesGiveTheSameConfiguration(t *testing.T) {
	texts := []string{
		"domain: a\nrequire: [user]\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}, {key: model, value: gpt, limit: tokens}]\n",
		"domain: a\nlimits: {tokens: {algorithm: token_bucket, rate: 9, period: 1s, settle: {estimate: {learn: p90, first: 5, per: [model]}}}}\n",
		"domain: b\ndescriptors: [{key: x, rate_limit: {unit: day, requests_per_unit: 2}}]\n",
		"domain: b\ndescriptors: [{key: x, rate_limit: {unit: day, requests_per_unit: 2}}, {key: y, rate_limit: {unit: nonsense}}]\n",
		"domain: a\ndescriptors: [{key: model, value: llama, descriptors: [{key: z, rate_limit: {unit: day, requests_per_unit: 2}}]}]\n",
		"domain: c\ndescriptors: [{key: settle, rate_limit: {unit: day, requests_per_unit: 2}}]\n---\ndomain: a\n",
	}
	for _, mistakes := range []bool{false, true} {
		var small, large []File
		for i, text := range texts {
			if i == 3 && !mistakes {
				continue
			}
			name := fmt.Sprintf("f%d.yaml", i)
			small = append(small, File{name, []byte(text)})
			large = append(large, File{name, []byte(text + "#" + strings.Repeat("x", keptBytes/2))})
		}
		want, wantProblems := Compile(small, Options{})
		got, problems := Compile(large, Options{})
		if want != nil && got != nil {
			got.Hash = want.Hash
		}
		if (want == nil) != mistakes || !slices.Equal(problems, wantProblems) || !reflect.DeepEqual(got, want) {
			t.Errorf("mistakes %t: got %v, want %v, and the same configuration", mistakes, problems, wantProblems)
		}
	}
}
