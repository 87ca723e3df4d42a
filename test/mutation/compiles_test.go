package main

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// goPackage is the part of go list's report about a package that the type checker needs.
type goPackage struct {
	Dir, ImportPath string
	Export          string // the file with the exported types
	GoFiles         []string
}

// TestFaultsCompile type-checks each package with each of its faults. A fault that does not compile could not
// be planted.
func TestFaultsCompile(t *testing.T) {
	if testing.Short() {
		t.Skip("go list compiles all packages; run the tests without -short")
	}
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	all, err := load("faults")
	if err != nil {
		t.Fatal(err)
	}
	packages, exports := listPackages(t, root)
	set := token.NewFileSet()
	imports := importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, f := range all {
		if filepath.Ext(f.File) != ".go" {
			continue
		}
		path := filepath.Join(root, f.File)
		p, known := packages[filepath.Dir(path)]
		if !known {
			t.Errorf("%s: there is no package of %s", f, f.File)
			continue
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			name = filepath.Join(p.Dir, name)
			data, err := os.ReadFile(name)
			if err == nil && name == path {
				data, err = f.apply(data)
			}
			if err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			file, err := parser.ParseFile(set, name, data, parser.SkipObjectResolution)
			if err != nil {
				t.Errorf("%s: %v", f, err)
			}
			files = append(files, file)
		}
		checker := types.Config{Importer: imports}
		if _, err := checker.Check(p.ImportPath, set, files, nil); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}

// listPackages returns the packages of the module at root by their folders, and the files with the exported
// types of these packages and of all that they import.
func listPackages(t *testing.T, root string) (packages map[string]goPackage, exports map[string]string) {
	t.Helper()
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=Dir,ImportPath,Export,GoFiles", "./internal/...", "./pkg/...")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	packages, exports = map[string]goPackage{}, map[string]string{}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages, exports
		} else if err != nil {
			t.Fatal(err)
		}
		packages[p.Dir], exports[p.ImportPath] = p, p.Export
	}
}
