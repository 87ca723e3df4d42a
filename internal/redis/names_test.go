package redis

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

const algorithmsDir = "../../pkg/algorithms"

// take.lua defines functions of package algorithms in the same order and under the same names, in one section for each
// file, so that both can be read side by side. Either may have functions that the other does not need.
func TestScriptHasFunctionsOfAlgorithmsInOrder(t *testing.T) {
	t.Parallel()
	sections, order := sectionsOf(source)
	if order[0] == "peaks.go" { // the first section, because not only the function general needs it
		order = order[1:]
	}
	if !slices.IsSorted(order) {
		t.Errorf("the sections are in the order %v, not in that of their names", order)
	}
	common := 0
	for file, lua := range sections {
		names := functionsOf(t, filepath.Join(algorithmsDir, file))
		inBoth := func(names, others []string) []string {
			return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(others, name) })
		}
		got, want := inBoth(lua, names), slices.Compact(inBoth(names, lua))
		if common += len(want); !slices.Equal(got, want) {
			t.Errorf("%s: the script has\n\t%s\nwant the order of package algorithms:\n\t%s", file, strings.Join(got, " "), strings.Join(want, " "))
		}
	}
	if common < 50 {
		t.Errorf("the script and package algorithms have %d functions in common, want at least 50", common)
	}
}

var (
	section  = regexp.MustCompile(`^ *-- (\w+\.go|[A-Z][\w ]*) -+$`)
	function = regexp.MustCompile(`^ {0,2}(?:local )?function (\w+)\(`)
)

func sectionsOf(script string) (functions map[string][]string, order []string) {
	functions = map[string][]string{}
	in := ""
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		if m := section.FindStringSubmatch(line); m != nil {
			if in = m[1]; strings.HasSuffix(in, ".go") {
				order = append(order, in)
			}
		} else if m := function.FindStringSubmatch(line); m != nil && strings.HasSuffix(in, ".go") {
			functions[in] = append(functions[in], m[1])
		}
	}
	return functions, order
}

// functionsOf returns the names of the functions of a Go file in order, as the script writes them.
func functionsOf(t *testing.T, path string) (names []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			names = append(names, snake(f.Name.Name))
		}
	}
	return names
}

func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
