package observability

import (
	"os"
	"os/exec"
	"path/filepath"
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
