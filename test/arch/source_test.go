package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"testing"
)

// clockless lists packages that get time and randomness as arguments, so that their decisions can be repeated.
var clockless = []string{"pkg/algorithms", "pkg/calendar", "pkg/descriptors", "internal/limiter", "internal/offline/simulate"}

// These are the packages, and the functions of package time, that clockless packages must not use.
var (
	outsidePackages  = []string{"math/rand", "math/rand/v2", "crypto/rand", "log", "log/slog", "os", "syscall"}
	outsideFunctions = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
)

func TestDecidingReadsNoClock(t *testing.T) {
	for _, name := range clockless {
		p := find(t, name)
		for _, imported := range p.Imports {
			if slices.Contains(outsidePackages, imported) {
				t.Errorf("%s imports %s, want decisions that depend on arguments only", name, imported)
			}
		}
		fset := token.NewFileSet()
		for _, path := range p.files(p.GoFiles) {
			ast.Inspect(parse(t, fset, path), func(n ast.Node) bool {
				selector, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if x, ok := selector.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(outsideFunctions, selector.Sel.Name) {
					t.Errorf("%s uses time.%s; this package must get the time as an argument", fset.Position(n.Pos()), selector.Sel.Name)
				}
				return true
			})
		}
	}
}

// TestPackageComments requires one package comment for each package, so that go doc has one place to begin.
func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		var with []string
		fset := token.NewFileSet()
		for _, path := range p.files(slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles)) {
			if parse(t, fset, path).Doc != nil {
				with = append(with, filepath.Base(path))
			}
		}
		if len(with) != 1 {
			t.Errorf("%s has %d package comments, want one: %v", p.name(), len(with), with)
		}
	}
}

// A function longer than maxLines, or a struct with more than maxFields, needs an entry in mayBeLong.
const maxLines, maxFields = 60, 25

// mayBeLong lists the functions and structs that may exceed the bounds, with the reason.
var mayBeLong = map[string]string{
	"internal/server.Config": "has one field for each flag, or group of flags",
	"internal/config.limit":  "has one field for each key of a limit",
}

// The suite for Stores consists of tests, so its functions may be long.
func TestFunctionsAndStructsAreShort(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range packages(t) {
		if p.name() == "pkg/backend/storetest" || !within(p.name(), "cmd") && !within(p.name(), "internal") && !within(p.name(), "pkg") {
			continue
		}
		fset := token.NewFileSet()
		check := func(name string, is, most int, unit string, n ast.Node) {
			name = p.name() + "." + name
			if is <= most {
				return
			}
			seen[name] = true
			if mayBeLong[name] == "" {
				t.Errorf("%s: %s has %d %s, want at most %d", fset.Position(n.Pos()), name, is, unit, most)
			}
		}
		for _, path := range p.files(p.GoFiles) {
			ast.Inspect(parse(t, fset, path), func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					check(n.Name.Name, fset.Position(n.End()).Line-fset.Position(n.Pos()).Line+1, maxLines, "lines", n)
				case *ast.TypeSpec:
					if s, ok := n.Type.(*ast.StructType); ok {
						check(n.Name.Name, s.Fields.NumFields(), maxFields, "fields", n)
					}
				}
				return true
			})
		}
	}
	for name := range mayBeLong {
		if !seen[name] {
			t.Errorf("%s is in the list of long functions and structs, but is within the bounds", name)
		}
	}
}

func (p goPackage) files(names []string) []string {
	var paths []string
	for _, name := range names {
		paths = append(paths, filepath.Join(p.Dir, name))
	}
	return paths
}

func parse(t *testing.T, fset *token.FileSet, path string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return file
}
