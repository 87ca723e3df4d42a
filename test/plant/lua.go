//go:build unix

package main

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// luaEdit is a fault in a Lua script: the text at an offset is replaced.
type luaEdit struct {
	script   string
	at       int
	old, new string
}

// luaRules has what is replaced in a line of Lua. Comments and texts in quotes are left out.
var luaRules = []struct {
	rule string
	find *regexp.Regexp // the first group is replaced
	by   func(old string) string
}{
	{"moved comparison", regexp.MustCompile(`[^<>=~](<=|>=|<|>)[^<>=]`), exchange("<", "<=", ">", ">=")},
	{"exchanged == and ~=", regexp.MustCompile(`(==|~=)`), exchange("==", "~=")},
	{"exchanged and and or", regexp.MustCompile(`\b(and|or)\b`), exchange("and", "or")},
	{"exchanged true and false", regexp.MustCompile(`\b(true|false)\b`), exchange("true", "false")},
	{"exchanged + and -", regexp.MustCompile(` ([+-]) `), exchange("+", "-")},
	{"changed constant", regexp.MustCompile(`\b([0-9]+)\b`), func(old string) string { return "(" + old + " + 1)" }},
	{"deleted statement", regexp.MustCompile(`^\s*(` + luaStatement + `)[ \x01]*$`), func(string) string { return "" }},
}

// luaStatement matches an assignment, a call, and an early return, if it ends in its line.
const luaStatement = `[a-z_0-9.\[\]]+(?:, [a-z_0-9.\[\]]+)* = .*[^,{(]|[a-z_.]+\(.*\)|if .* then return.* end`

// exchange returns a function that returns the other text of a pair.
func exchange(pairs ...string) func(string) string {
	return func(old string) string { return pairs[slices.Index(pairs, old)^1] }
}

var luaText = regexp.MustCompile(`'[^']*'|--.*`)

// plantLua plants faults in the scripts that p embeds. A test binary has the faultless script, and the chosen fault is
// made when the program starts.
func (p *pkg) plantLua(files []*ast.File, overlay map[string][]byte) error {
	for i, file := range files {
		for _, d := range file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Doc == nil {
				continue
			}
			script, found := strings.CutPrefix(g.Doc.List[len(g.Doc.List)-1].Text, "//go:embed ")
			if !found || !strings.HasSuffix(script, ".lua") {
				continue
			}
			content, err := os.ReadFile(filepath.Join(p.dir, script))
			if err != nil {
				return err
			}
			p.luaFaults(script, string(content))
			name := g.Specs[0].(*ast.ValueSpec).Names[0].Name
			path := filepath.Join(p.dir, p.files[i])
			use := regexp.MustCompile(`([(+] ?)` + name + `\b`) // as an argument, or joined with another text
			overlay[path] = use.ReplaceAll(overlay[path], fmt.Appendf(nil, "${1}plantedScript(%q, %s)", script, name))
		}
	}
	return nil
}

func (p *pkg) luaFaults(script, content string) {
	offset := 0
	for number, line := range strings.SplitAfter(content, "\n") {
		code := luaText.ReplaceAllStringFunc(strings.TrimSuffix(line, "\n"), func(s string) string { return strings.Repeat("\x01", len(s)) })
		for _, r := range luaRules {
			for _, at := range r.find.FindAllStringSubmatchIndex(code, -1) {
				old := code[at[2]:at[3]]
				if r.rule == "deleted statement" {
					old = line[at[2]:at[3]]
				}
				p.faults = append(p.faults, fault{
					place: fmt.Sprintf("%s/%s:%d", p.path, script, number+1), rule: r.rule, text: strings.TrimSpace(line),
					lua: &luaEdit{script, offset + at[2], old, r.by(old)},
				})
			}
		}
		offset += len(line)
	}
}

// support returns the functions that the faulty files call.
func support(name string, faults []fault) string {
	var edits strings.Builder
	for i, f := range faults {
		if f.lua != nil {
			fmt.Fprintf(&edits, "\tcase script == %q && plantedChosen == %d:\n\t\treturn text[:%d] + %q + text[%d:]\n", f.lua.script, i+1, f.lua.at, f.lua.new, f.lua.at+len(f.lua.old))
		}
	}
	return fmt.Sprintf(supportText, name, len(faults)+1, edits.String())
}

const supportText = `package %s

import (
	plantedos "os"
	plantedconv "strconv"
	plantedatomic "sync/atomic"
)

var plantedChosen, _ = plantedconv.Atoi(plantedos.Getenv("PLANTED"))

var plantedList, _ = plantedos.OpenFile(plantedos.Getenv("PLANTED_REACHED"), plantedos.O_APPEND|plantedos.O_CREATE|plantedos.O_WRONLY, 0o600)

var plantedSeen [%d]plantedatomic.Bool

func planted(n int) bool {
	if plantedList != nil && !plantedSeen[n].Swap(true) {
		plantedList.WriteString(plantedconv.Itoa(n) + "\n")
	}
	return n == plantedChosen
}

func plantedNil(n int, err error) error {
	if planted(n) {
		return nil
	}
	return err
}

type plantedInteger interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

func plantedLess[T plantedInteger](n int, a, b T) bool         { return a < b || a == b && planted(n) }
func plantedLessEqual[T plantedInteger](n int, a, b T) bool    { return a < b || a == b && !planted(n) }
func plantedGreater[T plantedInteger](n int, a, b T) bool      { return a > b || a == b && planted(n) }
func plantedGreaterEqual[T plantedInteger](n int, a, b T) bool { return a > b || a == b && !planted(n) }

func plantedSum[T plantedInteger](n int, a, b T) T {
	if planted(n) {
		return a - b
	}
	return a + b
}

func plantedDifference[T plantedInteger](n int, a, b T) T {
	return plantedSum(n, a, -b)
}

func plantedMin[T plantedInteger](n int, a T, others ...T) T {
	for _, b := range others {
		if (b < a) != planted(n) {
			a = b
		}
	}
	return a
}

func plantedMax[T plantedInteger](n int, a T, others ...T) T {
	for _, b := range others {
		if (b > a) != planted(n) {
			a = b
		}
	}
	return a
}

func plantedZero[T any](n int, v T) T {
	if planted(n) {
		var zero T
		return zero
	}
	return v
}

// plantedNumber adds one to a small constant, and halves a large one.
func plantedNumber[T plantedInteger](n int, v T) T {
	switch {
	case !planted(n):
		return v
	case v > 1 && v/2 > 50:
		return v / 2
	default:
		return v + 1
	}
}

func plantedScript(script, text string) string {
	switch {
%s	}
	return text
}

var _ = plantedScript
`
