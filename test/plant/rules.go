//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// pkg is a package into which faults are planted.
type pkg struct {
	path  string // relative to the root of the module
	name  string
	dir   string
	files []string

	fileSet *token.FileSet
	info    *types.Info
	exports map[string]string // the file with the export data of each package

	statements map[ast.Expr]bool // the calls whose results are not used

	// These belong to the file that is being read.
	source  []byte
	imports map[string]string // the local name of each imported package
	edits   []edit
	faults  []fault
}

// edit inserts text at an offset of a file.
type edit struct {
	at    int
	text  string
	order int // of the edits at one offset: those that end an outer expression come last, those that begin one come first
}

// lastOfGo is the number of the last fault in Go. Faults in Lua have larger numbers, and are not in the list of faults
// that the tests reach.
var lastOfGo int

func load(patterns []string) ([]*pkg, error) {
	args := append([]string{"list", "-export", "-deps", "-json=ImportPath,Name,Dir,GoFiles,Export,DepOnly,Module"}, patterns...)
	command := exec.Command("go", args...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var packages []*pkg
	exports := map[string]string{}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var one struct {
			ImportPath, Name, Dir, Export string
			GoFiles                       []string
			DepOnly                       bool
			Module                        *struct{ Path string }
		}
		if err := decoder.Decode(&one); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		exports[one.ImportPath] = one.Export
		if !one.DepOnly && one.Module != nil {
			path := strings.TrimPrefix(strings.TrimPrefix(one.ImportPath, one.Module.Path), "/")
			packages = append(packages, &pkg{path: path, name: one.Name, dir: one.Dir, files: one.GoFiles, exports: exports})
		}
	}
	return packages, nil
}

// plant returns the faults of p, and the content of its files with all faults.
func (p *pkg) plant() ([]fault, map[string][]byte, error) {
	p.fileSet, p.statements = token.NewFileSet(), map[ast.Expr]bool{}
	var files []*ast.File
	for _, name := range p.files {
		file, err := parser.ParseFile(p.fileSet, filepath.Join(p.dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, file)
	}
	p.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(p.fileSet, "gc", func(path string) (io.ReadCloser, error) { return os.Open(p.exports[path]) })}
	if _, err := config.Check(p.path, p.fileSet, files, p.info); err != nil {
		return nil, nil, err
	}
	overlay := map[string][]byte{}
	for i, file := range files {
		path := filepath.Join(p.dir, p.files[i])
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
		p.source, p.edits, p.imports = content, nil, importsOf(file)
		for _, d := range file.Decls {
			p.declaration(d)
		}
		overlay[path] = apply(content, p.edits)
	}
	lastOfGo = len(p.faults)
	if err := p.plantLua(files, overlay); err != nil {
		return nil, nil, err
	}
	if len(p.faults) > 0 {
		overlay[filepath.Join(p.dir, "planted_support.go")] = []byte(support(p.name, p.faults))
	}
	return p.faults, overlay, nil
}

func importsOf(file *ast.File) map[string]string {
	names := map[string]string{}
	for _, spec := range file.Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		names[path] = "" // the name of the package
		if spec.Name != nil {
			names[path] = spec.Name.Name
		}
	}
	return names
}

func (p *pkg) declaration(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Body != nil && !strings.Contains(d.Doc.Text(), "go:") {
			p.walk(d.Body)
		}
	case *ast.GenDecl:
		if d.Tok == token.VAR {
			for _, spec := range d.Specs {
				for _, value := range spec.(*ast.ValueSpec).Values {
					p.walk(value)
				}
			}
		}
	}
}

// walk plants the faults in n and below. It leaves out what the language requires to be constant.
func (p *pkg) walk(n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			if n.Tok == token.CONST || n.Tok == token.TYPE {
				return false
			}
		case *ast.ArrayType, *ast.StructType, *ast.InterfaceType, *ast.FuncType:
			return false
		case *ast.CompositeLit:
			if _, ok := p.info.Types[n].Type.Underlying().(*types.Map); !ok {
				_, isStruct := p.info.Types[n].Type.Underlying().(*types.Struct)
				for _, e := range n.Elts {
					if pair, ok := e.(*ast.KeyValueExpr); ok {
						if isStruct {
							p.missing(pair.Value)
						}
						p.walk(pair.Value)
					} else {
						p.walk(e)
					}
				}
				return false
			}
		case *ast.BlockStmt:
			p.deletions(n.List)
		case *ast.SwitchStmt:
			if n.Tag == nil {
				for _, clause := range n.Body.List {
					for _, e := range clause.(*ast.CaseClause).List {
						p.condition(e)
					}
				}
			}
		case *ast.CaseClause:
			p.deletions(n.Body)
			if slices.ContainsFunc(n.List, func(e ast.Expr) bool { return p.info.Types[e].IsType() }) {
				for _, s := range n.Body {
					p.walk(s)
				}
				return false
			}
		case *ast.CommClause:
			p.deletions(n.Body)
		case *ast.ReturnStmt:
			p.unreturned(n)
		case *ast.ExprStmt:
			p.statements[n.X] = true
		case *ast.DeferStmt:
			p.statements[n.Call] = true
		case *ast.GoStmt:
			p.statements[n.Call] = true
		case *ast.IfStmt:
			p.condition(n.Cond)
		case *ast.UnaryExpr:
			if n.Op == token.NOT {
				p.condition(n.X)
			}
		case ast.Expr:
			return p.expression(n)
		}
		return true
	})
}

// expression plants faults in e, and reports whether its parts may have others.
func (p *pkg) expression(e ast.Expr) bool {
	is := p.info.Types[e]
	if is.Value != nil {
		p.constant(e, is)
		return false
	}
	switch e := e.(type) {
	case *ast.CallExpr:
		if is.IsValue() && isBoolean(is.Type) && !p.statements[e] {
			p.negated(e)
		}
		p.exchangedMinMax(e)
	case *ast.BinaryExpr:
		p.operator(e)
	}
	return !is.IsType()
}

func (p *pkg) operator(binary *ast.BinaryExpr) {
	switch binary.Op {
	case token.ADD, token.SUB:
		if p.isInteger(binary) {
			name := map[token.Token]string{token.ADD: "Sum", token.SUB: "Difference"}[binary.Op]
			n := p.add(binary, "exchanged + and -")
			p.around(binary, fmt.Sprintf("planted%s(%d, ", name, n), ")")
			p.replace(binary.OpPos, 1, ",")
		}
	case token.LAND, token.LOR:
		before := "(planted(%d) || ("
		if binary.Op == token.LOR {
			before = "(!planted(%d) && ("
		}
		for _, side := range []ast.Expr{binary.X, binary.Y} {
			n := p.add(side, "dropped side of "+binary.Op.String())
			p.around(side, fmt.Sprintf(before, n), "))")
		}
	case token.EQL, token.NEQ:
		n := p.add(binary, "exchanged == and !=")
		p.around(binary, "((", fmt.Sprintf(") != planted(%d))", n))
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		if p.isInteger(binary.X) && p.isInteger(binary.Y) {
			p.moved(binary)
		}
	}
}

func isBoolean(t types.Type) bool { return types.Identical(t, types.Typ[types.Bool]) }

func (p *pkg) negated(e ast.Expr) {
	n := p.add(e, "negated")
	p.around(e, "(", fmt.Sprintf(" != planted(%d))", n))
}

func (p *pkg) exchangedMinMax(call *ast.CallExpr) {
	name, ok := call.Fun.(*ast.Ident)
	if ok && p.info.Types[name].IsBuiltin() && (name.Name == "min" || name.Name == "max") && p.isInteger(call) {
		n := p.add(call, "exchanged min and max")
		p.replace(call.Pos(), len("min"), map[string]string{"min": "plantedMin", "max": "plantedMax"}[name.Name])
		p.edits = append(p.edits, edit{p.fileSet.Position(call.Lparen).Offset + 1, fmt.Sprintf("%d, ", n), 0})
	}
}

func (p *pkg) isInteger(e ast.Expr) bool {
	basic, ok := p.info.Types[e].Type.Underlying().(*types.Basic)
	return ok && basic.Info()&types.IsInteger != 0
}

// moved moves a comparison by one: a < b becomes a <= b. The operands are evaluated once.
func (p *pkg) moved(b *ast.BinaryExpr) {
	name := map[token.Token]string{token.LSS: "Less", token.LEQ: "LessEqual", token.GTR: "Greater", token.GEQ: "GreaterEqual"}[b.Op]
	n := p.add(b, "moved comparison")
	p.around(b, fmt.Sprintf("planted%s(%d, ", name, n), ")")
	p.replace(b.OpPos, len(b.Op.String()), ",")
}

// constant changes a constant number, or true or false.
func (p *pkg) constant(e ast.Expr, is types.TypeAndValue) {
	basic, ok := is.Type.Underlying().(*types.Basic)
	if !ok || basic.Info()&types.IsUntyped != 0 {
		return
	}
	switch {
	case basic.Info()&types.IsBoolean != 0:
		if ident, ok := e.(*ast.Ident); ok && (ident.Name == "true" || ident.Name == "false") && is.Type == types.Typ[types.Bool] {
			n := p.add(e, "exchanged true and false")
			p.around(e, "(", fmt.Sprintf(" != planted(%d))", n))
		}
	case basic.Info()&types.IsInteger != 0 && is.Value.Kind() == constant.Int:
		if name, ok := p.typeName(is.Type); ok {
			n := p.add(e, "changed constant")
			p.around(e, fmt.Sprintf("plantedNumber[%s](%d, ", name, n), ")")
		}
	}
}

// typeName returns how t is written in the current file.
func (p *pkg) typeName(t types.Type) (string, bool) {
	ok := true
	name := types.TypeString(t, func(other *types.Package) string {
		if other.Path() == p.path {
			return ""
		}
		local, imported := p.imports[other.Path()]
		if !imported || local == "." || local == "_" {
			ok = false
		}
		if local == "" {
			local = other.Name()
		}
		return local
	})
	if named, isNamed := t.(*types.Named); isNamed && named.Obj().Parent() != named.Obj().Pkg().Scope() {
		ok = false // declared in a function
	}
	return name, ok
}

// deletions deletes statements one by one.
func (p *pkg) deletions(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE || slices.ContainsFunc(s.Lhs, isBlank) {
				continue
			}
		case *ast.ExprStmt:
			if call, ok := s.X.(*ast.CallExpr); ok {
				if name, ok := call.Fun.(*ast.Ident); ok && name.Name == "panic" {
					continue
				}
			}
		case *ast.IncDecStmt, *ast.SendStmt, *ast.DeferStmt, *ast.GoStmt:
		default:
			continue
		}
		n := p.add(s, "deleted statement")
		p.around(s, fmt.Sprintf("if !planted(%d) { ", n), " }")
	}
}

func isBlank(e ast.Expr) bool {
	ident, ok := e.(*ast.Ident)
	return ok && ident.Name == "_"
}

// condition negates a condition that is a variable or an element. Other conditions have faults of their own.
func (p *pkg) condition(e ast.Expr) {
	switch e.(type) {
	case *ast.Ident, *ast.SelectorExpr, *ast.IndexExpr:
		if is := p.info.Types[e]; is.Value == nil && isBoolean(is.Type) {
			p.negated(e)
		}
	}
}

// missing leaves out a field of a struct.
func (p *pkg) missing(value ast.Expr) {
	if _, isFunction := value.(*ast.FuncLit); isFunction || p.info.Types[value].IsNil() || p.info.Types[value].Value != nil {
		return
	}
	n := p.add(value, "missing field")
	p.around(value, fmt.Sprintf("plantedZero(%d, ", n), ")")
}

func (p *pkg) unreturned(s *ast.ReturnStmt) {
	if len(s.Results) == 0 {
		return
	}
	last := s.Results[len(s.Results)-1]
	if is := p.info.Types[last]; !is.IsNil() && types.Identical(is.Type, types.Universe.Lookup("error").Type()) {
		n := p.add(last, "error not returned")
		p.around(last, fmt.Sprintf("plantedNil(%d, ", n), ")")
	}
}

func (p *pkg) add(n ast.Node, rule string) int {
	at := p.fileSet.Position(n.Pos())
	text := strings.Join(strings.Fields(string(p.source[at.Offset:p.fileSet.Position(n.End()).Offset])), " ")
	if len(text) > 100 {
		text = text[:100] + "…"
	}
	p.faults = append(p.faults, fault{place: fmt.Sprintf("%s/%s:%d", p.path, filepath.Base(at.Filename), at.Line), rule: rule, text: text})
	return len(p.faults)
}

func (p *pkg) around(n ast.Node, before, after string) {
	start, end := p.fileSet.Position(n.Pos()).Offset, p.fileSet.Position(n.End()).Offset
	order := len(p.edits)
	p.edits = append(p.edits, edit{start, before, order}, edit{end, after, -order})
}

// replace replaces length bytes at pos. A NUL in an edit stands for a byte to remove.
func (p *pkg) replace(pos token.Pos, length int, text string) {
	p.edits = append(p.edits, edit{p.fileSet.Position(pos).Offset, strings.Repeat("\x00", length) + text, len(p.edits)})
}

// apply makes the edits. An edit of an outer node was added before those of its parts. So of the edits at one offset,
// ends come before beginnings, inner ends before outer ends, and outer beginnings before inner ones.
func apply(content []byte, edits []edit) []byte {
	slices.SortStableFunc(edits, func(a, b edit) int {
		if a.at != b.at {
			return a.at - b.at
		}
		return a.order - b.order
	})
	var out []byte
	last := 0
	for _, e := range edits {
		out = append(out, content[last:max(last, e.at)]...)
		last = max(last, e.at)
		text := strings.TrimLeft(e.text, "\x00")
		last += len(e.text) - len(text)
		out = append(out, text...)
	}
	return append(out, content[last:]...)
}

func writeOverlay(folder string, overlay map[string][]byte) (string, error) {
	replace := map[string]string{}
	for path, content := range overlay {
		file := filepath.Join(folder, fmt.Sprintf("%d%s", len(replace), filepath.Ext(path)))
		if err := os.WriteFile(file, content, 0o600); err != nil {
			return "", err
		}
		replace[path] = file
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(folder, "overlay.json")
	return file, os.WriteFile(file, list, 0o600)
}
