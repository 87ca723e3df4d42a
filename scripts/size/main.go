// Size prints how large the program is, and how large each part may become. It counts the lines of the files that git
// tracks, as wc -l does. It also writes the column "lines" of ARCHITECTURE.md. Run it with make size. With LIST=-list it
// prints each function and struct that is too large instead, and writes nothing.
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

const (
	longFunction   = 60 // lines
	largeStruct    = 25 // fields, with those of embedded structs of the same package
	manyParameters = 6
)

// row is a line of the table. count counts the lines of the files that match it.
type row struct {
	name   string
	budget int
	count  func(file string) bool
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("size: ")
	list := flag.Bool("list", false, "print the functions and structs that are too large")
	flag.Parse()
	files := strings.Fields(output("git", "ls-files", "--cached", "--others", "--exclude-standard"))
	long, large, many := shapes(files)
	if *list {
		for _, one := range slices.Concat(long, large, many) {
			fmt.Println(one)
		}
		return
	}
	lines := map[string]int{}
	for _, f := range files {
		content, err := os.ReadFile(f)
		if err != nil { // a link to a folder, or a file that is deleted but not yet committed
			continue
		}
		lines[f] = strings.Count(string(content), "\n")
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "now\tat most\t \t")
	print := func(now, budget int, name string) { fmt.Fprintf(table, "%d\t%d\t \t%s\n", now, budget, name) }
	for _, r := range rows() {
		n := 0
		for f, count := range lines {
			if r.count(f) {
				n += count
			}
		}
		print(n, r.budget, r.name)
	}
	print(flags(), 50, "flags of serve")
	print(commands(), 13, "commands at the top level")
	print(len(long), 0, fmt.Sprintf("functions over %d lines", longFunction))
	print(len(large), 0, fmt.Sprintf("structs over %d fields", largeStruct))
	print(len(many), 0, fmt.Sprintf("functions with more than %d parameters", manyParameters))
	table.Flush()
	writeRooms(lines)
}

func rows() []row {
	in := func(names ...string) func(string) bool {
		return func(f string) bool {
			for _, name := range names {
				if isProgram(f) && strings.HasPrefix(f, name+"/") {
					return true
				}
			}
			return false
		}
	}
	ends := func(end string) func(string) bool { return func(f string) bool { return strings.HasSuffix(f, end) } }
	return []row{
		{"lines of pkg, internal and cmd without tests", 50_000, isProgram},
		{"the path of a request: algorithms to ratelimit", 24_000, in("pkg/algorithms", "pkg/backend", "pkg/ratelimit", "internal/limiter", "internal/stores",
			"internal/redis", "internal/h2grpc", "internal/grpcapi", "internal/nonblock", "internal/reservation", "internal/estimate")},
		{"internal/redis", 7_500, in("internal/redis")},
		{"internal/stores", 2_200, in("internal/stores")},
		{"take.lua", 1_800, ends("take.lua")},
		{"config and descriptors", 5_800, in("internal/config", "pkg/descriptors")},
		{"server", 3_000, in("internal/server")},
		{"adjust", 1_150, in("internal/adjust")},
		{"telemetry", 2_800, in("internal/telemetry")},
		{"cmd", 2_700, in("cmd")},
		{"Go tests and test programs", 70_000, isTest},
		{"bench", 4_000, func(f string) bool { return strings.HasPrefix(f, "bench/") && strings.HasSuffix(f, ".go") }},
		{"Markdown", 11_500, ends(".md")},
	}
}

// isTest reports whether f is a test, or a program or package that only tests use.
func isTest(f string) bool {
	return strings.HasSuffix(f, ".go") && (strings.HasSuffix(f, "_test.go") || strings.HasPrefix(f, "test/") ||
		strings.HasPrefix(f, "pkg/backend/storetest/") || strings.HasPrefix(f, "internal/testkit/"))
}

func isProgram(f string) bool {
	root, _, _ := strings.Cut(f, "/")
	return (root == "pkg" || root == "internal" || root == "cmd") && !isTest(f) &&
		(strings.HasSuffix(f, ".go") || strings.HasSuffix(f, ".lua"))
}

// isTool reports whether f is code that only developers run. The tests in pkg, internal and cmd do not count.
func isTool(f string) bool {
	switch filepath.Ext(f) {
	case ".go", ".sh", ".py":
		return !strings.HasSuffix(f, "_test.go") || strings.HasPrefix(f, "test/") || strings.HasPrefix(f, "bench/")
	default:
		return false
	}
}

func flags() (n int) {
	help := output("go", "run", "./cmd/rlsidecar", "serve", "--help")
	for _, name := range regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z0-9-]+)`).FindAllStringSubmatch(help, -1) {
		if name[1] != "help" && name[1] != "version" {
			n++
		}
	}
	return n
}

func commands() int {
	_, list, _ := strings.Cut(output("go", "run", "./cmd/rlsidecar", "--help"), "Commands:\n")
	names := map[string]bool{}
	for _, name := range regexp.MustCompile(`(?m)^  ([a-z]+)`).FindAllStringSubmatch(list, -1) {
		names[name[1]] = true
	}
	return len(names)
}

// shapes returns the functions and structs of the program that exceed the limits above, each with its place and size.
func shapes(files []string) (long, large, many []string) {
	positions := token.NewFileSet()
	structs := map[string]*ast.StructType{} // by folder and name
	name := func(n ast.Node, name string, size int, unit string) string {
		return fmt.Sprintf("%s: %s has %d %s", positions.Position(n.Pos()), name, size, unit)
	}
	for _, f := range files {
		if !isProgram(f) || !strings.HasSuffix(f, ".go") {
			continue
		}
		file, err := parser.ParseFile(positions, f, nil, parser.SkipObjectResolution)
		if err != nil {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if size := positions.Position(n.End()).Line - positions.Position(n.Pos()).Line + 1; size > longFunction {
					long = append(long, name(n, n.Name.Name, size, "lines"))
				}
				if size := fields(n.Type.Params, "", nil); size > manyParameters {
					many = append(many, name(n, n.Name.Name, size, "parameters"))
				}
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok {
					structs[filepath.Dir(f)+"."+n.Name.Name] = s
				}
			}
			return true
		})
	}
	for _, key := range slices.Sorted(maps.Keys(structs)) {
		s, of := structs[key], filepath.Ext(key)
		if size := fields(s.Fields, strings.TrimSuffix(key, of), structs); size > largeStruct {
			large = append(large, name(s, of[1:], size, "fields"))
		}
	}
	return long, large, many
}

// fields counts the fields of a list. For an embedded struct of the same folder it counts the fields of that struct.
func fields(list *ast.FieldList, folder string, structs map[string]*ast.StructType) (n int) {
	for _, f := range list.List {
		if len(f.Names) > 0 {
			n += len(f.Names)
		} else if name, ok := f.Type.(*ast.Ident); ok && structs[folder+"."+name.Name] != nil {
			n += fields(structs[folder+"."+name.Name].Fields, folder, structs)
		} else {
			n++
		}
	}
	return n
}

var room = regexp.MustCompile("(?m)^(\\| `((?:pkg|internal|cmd|test|bench|scripts)[a-z0-9/]*?)/?` \\|) *[0-9]* *\\|")

// writeRooms updates the column "lines" of the map in ARCHITECTURE.md, in hundreds. A package that has a row of its own
// does not count for the folder that contains it.
func writeRooms(lines map[string]int) {
	const page = "ARCHITECTURE.md"
	content, err := os.ReadFile(page)
	if err != nil {
		log.Fatal(err)
	}
	rooms := map[string]int{}
	for _, m := range room.FindAllStringSubmatch(string(content), -1) {
		rooms[m[2]] = 0
	}
	for f, n := range lines {
		if !isProgram(f) && !isTool(f) {
			continue
		}
		for dir := filepath.Dir(f); dir != "."; dir = filepath.Dir(dir) {
			if _, ok := rooms[dir]; ok {
				rooms[dir] += n
				break
			}
		}
	}
	changed := room.ReplaceAllStringFunc(string(content), func(line string) string {
		m := room.FindStringSubmatch(line)
		return fmt.Sprintf("%s %d |", m[1], (rooms[m[2]]+50)/100*100)
	})
	if changed != string(content) {
		if err := os.WriteFile(page, []byte(changed), 0o644); err != nil {
			log.Fatal(err)
		}
		fmt.Println("\nwrote the column \"lines\" of " + page)
	}
}

func output(name string, args ...string) string {
	command := exec.Command(name, args...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		log.Fatalf("%s: %v", strings.Join(command.Args, " "), err)
	}
	return string(out)
}
