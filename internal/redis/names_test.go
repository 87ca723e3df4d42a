package redis

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The functions that decide have the same names in package algorithms and in take.lua, so that both can be read side by
// side. Other tests compare their decisions.
func TestScriptNamesItsDecisionsAsPackageAlgorithms(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../pkg/algorithms/*.go")
	if err != nil {
		t.Fatal(err)
	}
	inGo, inScript := map[string]bool{}, map[string]bool{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (?:\([^)]*\) )?(\w+)\(`).FindAllSubmatch(text, -1) {
			inGo[strings.ToLower(string(m[1]))] = true
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^ *(?:local )?function (\w+)\(`).FindAllStringSubmatch(source, -1) {
		inScript[m[1]] = true
	}
	for _, name := range strings.Fields(`take take_level await take_guaranteed take_sliding take_log take_counted take_all
		converted convert balance take_converted take_kept decide_kept peaked room_since charged full_at later`) {
		if is := inGo[strings.ReplaceAll(name, "_", "")]; !inScript[name] || !is {
			t.Errorf("%s: in take.lua %t, in package algorithms %t; want both", name, inScript[name], is)
		}
	}
}
