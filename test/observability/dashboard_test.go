package observability

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

// TestDashboardFitsGrafana compares the dashboard with the TypeScript types that Grafana publishes. The
// dashboard may have no unknown key, and no value that Grafana does not accept.
func TestDashboardFitsGrafana(t *testing.T) {
	data, err := os.ReadFile(examples + "/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := typeCheck(t, data); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func typeCheck(t *testing.T, dashboard []byte) ([]byte, error) {
	t.Helper()
	tools, err := filepath.Abs(root + "/.tools/grafana-schema/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(tools); err != nil {
		tooltest.Missing(t, "grafana-schema")
	}
	types, err := os.ReadFile("testdata/schema.ts")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(tools, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "dashboard.ts"), append(types, dashboard...), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", "node_modules/typescript/bin/tsc", "--noEmit", "--strict", "--skipLibCheck", "--preserveSymlinks",
		"--moduleResolution", "bundler", "--module", "esnext", "--target", "es2022", "dashboard.ts")
	cmd.Dir = dir
	return cmd.CombinedOutput()
}

// TestDashboardLayout checks the order of the panels in the first row, which shows whether the sidecars work.
// No panel may overlap another.
func TestDashboardLayout(t *testing.T) {
	d := readDashboard(t)
	var first []string
	ids := map[int]string{}
	at := map[[2]int]string{}
	for _, p := range d.Panels {
		if other, taken := ids[p.ID]; taken {
			t.Errorf("%s and %s have the same id", p.Title, other)
		}
		ids[p.ID] = p.Title
		if p.GridPos.Y == 0 {
			first = append(first, p.Title)
		}
		if p.Type != "row" && (p.Description == "" || len(p.Targets) == 0) {
			t.Errorf("%s has no description or no query", p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, taken := at[[2]int{x, y}]; taken || x >= 24 {
					t.Fatalf("panel %s overlaps %s, or is too wide for the dashboard", p.Title, other)
				}
				at[[2]int{x, y}] = p.Title
			}
		}
	}
	if got := strings.Join(first, ", "); got != "Block ratio, Store errors, Denied by limit, p99, Used share" {
		t.Errorf("the first row has the panels %q, want Block ratio, Store errors, Denied by limit, p99, Used share", got)
	}
}
