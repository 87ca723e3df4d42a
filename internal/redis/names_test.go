package redis

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

const algorithmsDir = "../../pkg/algorithms"

// exceptions lists functions of package algorithms that have another name in the script. The name "" means that
// the script does not have the function.
var exceptions = map[string]struct{ name, reason string }{
	"Kind.String":         {"", "text for people"},
	"NewPeaks":            {"", "for Stores of other modules"},
	"Limit.TakeAt":        {"", "take without a copy; Lua copies nothing"},
	"Limit.afterDenial":   {"kept_of", "the name keep is that of its last step"},
	"Limit.stays":         {"", "one line of keep"},
	"Limit.start":         {"", "begin without a copy"},
	"Limit.startsFilled":  {"", "a comparison, written out"},
	"Limit.ChargesDenied": {"", "a field of the limit"},
	"Limit.tickOf":        {"", "t - t % tick, written out"},
	"Limit.ticks":         {"", "a division, written out"},
	"floorDiv":            {"", "math.floor; Lua divides doubles"},
	"Calendar.After":      {"calendar_time", "after is a function of changed.go"},
	"Calendar.same":       {"", "a comparison of two numbers"},
	"kept.until":          {"until_units", "until is a keyword of Lua"},
	"kept.moment":         {"", "a sum, written out"},
	"kept.giveBack":       {"give_units", "give_back is a function of algorithms.go"},
	"kept.given":          {"given_units", "given is a local name in many functions"},
	"keptPair.left":       {"", "part of take_kept_pair"},
	"keptPair.giveBack":   {"", "part of take_kept_pair"},
	"keptPair.has":        {"", "inside take_kept_pair, with access to its locals"},
	"keptPair.pay":        {"", "part of take_kept_pair"},
	"keptPair.until":      {"", "enough_in inside take_kept_pair, with access to its locals"},
	"Limit.windowStart":   {"", "starts_in inside take_window; of a calendar calendar_start"},
	"Limit.WindowEnd":     {"", "the sidecar uses it"},
	"Limit.roll":          {"", "two lines of take_window"},
	"Limit.granted":       {"", "part of charge_window"},
	"Limit.overdrawn":     {"", "part of charge_window"},
	"Limit.clears":        {"", "a field of the limit"},
	"Limit.windowOver":    {"", "a comparison, written out"},
	"Limit.denialSpan":    {"", "a product, written out"},
	"Limit.counts":        {"", "a condition of take_counted"},
	"Limit.uncharged":     {"", "the last lines of charge_if"},
	"Bucket.refunds":      {"", "a condition of take_all"},
	"Bucket.own":          {"again", "the decision of a dry run of it"},
	"Bucket.dryRun":       {"dry_run_of", "dry_run is a parameter of many functions"},
	"Bucket.isNever":      {"", "a condition of peek"},
	"Bucket.retryWith":    {"own_retry", "the sidecar combines the times, because those of calendars are numbers of windows"},
	"Peaks.All":           {"", "the table itself"},
	"Limit.Unit":          {"unit_of", "unit is a local name in many functions"},
	"Limit.full":          {"full_of", "full is a local name in many functions"},
	"Limit.raw":           {"", "cost_in with the unit of the limit"},
}

// inGo lists files of package algorithms whose functions the sidecar calls before or after the script. The script has
// only some of these functions.
var inGo = map[string]string{
	"internals.go": "other packages read the numbers of a limit",
	"lease.go":     "the sidecar decides about leases; the script sees charges and refunds",
	"retry.go":     "the sidecar combines retry times",
	"limit.go":     "limits are compiled before they are sent",
	"spec.go":      "limits are changed before they are sent",
	"shards.go":    "the sidecar divides a charge among shards; the script charges each as a bucket",
}

// inLua lists functions of the script that the Go file of their section does not have.
var inLua = map[string]string{
	"clear":          "Go writes an empty Decision",
	"calendar_start": "Go has all windows of a calendar, the script five",
	"locate":         "a state of a calendar remembers its window",
	"phase_of":       "a state remembers its phase; in Go the hash of the key gives it",
	"with":           "states are copied here; Go sets the field",
	"expired":        "Go cuts a slice; the script searches a list",
	"take_one":       "a charge alone; Go has no group of one",
}

// take.lua defines the functions of package algorithms in the same order and under the same names, in one
// section for each file, so that both can be read side by side. The test fails for a function that only one
// of them has, unless exceptions, inGo or inLua names it.
func TestScriptHasFunctionsOfAlgorithmsInOrder(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(algorithmsDir + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(path string) bool { return strings.HasSuffix(path, "_test.go") })
	sections, order := sectionsOf(source)
	if order[0] == "peaks.go" { // the first section, because not only the function general needs it
		order = order[1:]
	}
	if !slices.IsSorted(order) {
		t.Errorf("the sections are in the order %v, not in that of their names", order)
	}
	unused := map[string]bool{}
	for name := range exceptions {
		unused[name] = true
	}
	for name := range inLua {
		unused[name] = true
	}
	for _, path := range files {
		file := filepath.Base(path)
		var want []string
		own := map[string]bool{}
		for _, name := range functionsOf(t, path) {
			_, short, method := strings.Cut(name, ".")
			if !method {
				short = name
			}
			lua := snake(short)
			if other, ok := exceptions[name]; ok {
				delete(unused, name)
				lua = other.name
			}
			if lua != "" && (inGo[file] == "" || slices.Contains(sections[file], lua)) {
				want, own[lua] = append(want, lua), true
			}
		}
		var got []string
		for _, name := range sections[file] {
			if _, extra := inLua[name]; extra && !own[name] {
				delete(unused, name)
				continue
			}
			got = append(got, name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: the script has\n\t%s\nwant the order of package algorithms:\n\t%s", file, strings.Join(got, " "), strings.Join(want, " "))
		}
		delete(sections, file)
	}
	for file := range sections {
		t.Errorf("the script has a section %s, and package algorithms has no such file", file)
	}
	for name := range unused {
		t.Errorf("%s is an exception that is not needed; want it removed", name)
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

// functionsOf returns the names of the functions of a Go file in order, as Type.Method for methods.
func functionsOf(t *testing.T, path string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := f.Name.Name
		if f.Recv != nil {
			of := f.Recv.List[0].Type
			if star, ok := of.(*ast.StarExpr); ok {
				of = star.X
			}
			name = of.(*ast.Ident).Name + "." + name
		}
		names = append(names, name)
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
