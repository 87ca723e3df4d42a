package redis

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// The functions that decide have the same names in package algorithms and in take.lua, so that both can be read side by
// side. Other tests compare their decisions.
func TestScriptNamesItsDecisionsAsPackageAlgorithms(t *testing.T) {
	t.Parallel()
	inScript := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^ *(?:local )?function (\w+)\(`).FindAllStringSubmatch(source, -1) {
		inScript[m[1]] = true
	}
	inGo := map[string]bool{}
	files, err := filepath.Glob("../../pkg/algorithms/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				inGo[snake(f.Name.Name)] = true
			}
		}
	}
	for _, name := range strings.Fields(`take take_level await take_guaranteed take_sliding take_log take_counted take_all
		take_converted adopt_balance take_kept decide_kept peaked room_since charged full_at later`) {
		if !inScript[name] || !inGo[name] {
			t.Errorf("%s: in take.lua %t, in package algorithms %t; want both", name, inScript[name], inGo[name])
		}
	}
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
