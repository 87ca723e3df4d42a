package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTargetsCanBeMeasured checks that rlbench can measure every row with the programs that are installed. It does not
// check the figures, which depend on the speed of the machine.
func TestTargetsCanBeMeasured(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	build := func(module, program string) {
		command := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, "bin")+"/", program)
		command.Dir = module
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", program, err, out)
		}
	}
	build("../..", "./cmd/rlsidecar")
	build("..", "./rlbench")
	for _, program := range []string{"redis-server", "envoy", "wrk"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") != "" && program == "redis-server" {
				t.Fatal(err)
			}
			t.Logf("%v: some rows are not measured", err)
		}
	}
	var table, progress bytes.Buffer
	run := exec.CommandContext(t.Context(), "rlbench", "targets", "--quick", "--sidecar", filepath.Join(dir, "bin", "rlsidecar"))
	run.Stdout, run.Stderr = io.MultiWriter(&table, t.Output()), io.MultiWriter(&progress, t.Output())
	if err := run.Run(); err != nil {
		t.Fatal(err)
	}
	for _, l := range comparisons {
		if !strings.Contains(progress.String(), l.name+" is measured") && !strings.Contains(table.String(), l.name+": "+errMissing.Error()) {
			t.Errorf("the output lacks the row %s", l.name)
		}
	}
}

func TestFindingsAreJudgedByTheirRatios(t *testing.T) {
	f := finding{ceiling: []float64{1, 2, 10}, ours: []float64{2, 2, 12}, target: 1.25} // 2, 1, 1.2
	if !f.isMet() {
		t.Errorf("got %v; want a ratio that meets the target", f.ratio())
	}
	f.target = 1.1
	if f.isMet() {
		t.Errorf("got %v; want a ratio that misses the target", f.ratio())
	}
	f.ceiling, f.atLeast, f.target = nil, true, 3
	if f.isMet() {
		t.Errorf("got %v; want a ratio that misses the target", f.ratio())
	}
}
