package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

// TestCompose does not run examples/compose, because Docker may be missing. It checks that the files which the
// containers mount exist, that Envoy accepts the configuration which its container makes from envoy.yaml, and that
// Prometheus accepts its own, and listens where Grafana looks for it. TestProxies runs envoy.yaml itself, and
// test/observability the rules and the dashboard.
func TestCompose(t *testing.T) {
	t.Parallel()
	envoy := tooltest.Path(t, "envoy")
	data := read(t, root+"/examples/compose/compose.yaml")
	var compose struct {
		Services map[string]struct {
			Build, Image string
			Command      []string
			Volumes      []string
			Network      string `yaml:"network_mode"`
		}
	}
	if err := yaml.Unmarshal([]byte(data), &compose); err != nil {
		t.Fatal(err)
	}
	for name, service := range compose.Services {
		for _, volume := range service.Volumes {
			from, _, _ := strings.Cut(volume, ":")
			if _, err := os.Stat(filepath.Join(root, "examples/compose", from)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if name != "envoy" && service.Network != "service:envoy" {
			t.Errorf("%s is in another network than Envoy", name)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "examples/compose", compose.Services["rlsidecar"].Build, "go.mod")); err != nil {
		t.Error(err)
	}
	checkPrometheus(t, compose.Services["prometheus"].Command)
	edit, _, _ := strings.Cut(compose.Services["envoy"].Command[2], " > ")
	edit = strings.Replace(edit, "/example", root+"/examples/envoy", 1)
	edited, err := exec.Command("sh", "-c", edit).Output()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(edited), "0.0.0.0, port_value: 10000") != 1 || strings.Count(string(edited), "0.0.0.0, port_value: 10001") != 1 || strings.Count(string(edited), "0.0.0.0") != 2 {
		t.Errorf("want exactly two addresses 0.0.0.0, of the ports 10000 and 10001, in\n%s", edited)
	}
	path := filepath.Join(t.TempDir(), "envoy.yaml")
	writeFile(t, path, string(edited))
	if out, err := exec.Command(envoy, "--mode", "validate", "-c", path).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	command := compose.Services["rlsidecar"].Command
	if strings.Join(command[:4], " ") != "/bin/rlsidecar serve --config /example/rlsidecar.yaml" {
		t.Errorf("got %q; want /bin/rlsidecar serve --config /example/rlsidecar.yaml", command)
	}
}

// checkPrometheus checks the configuration of Prometheus and of Grafana's data source. command is that of Prometheus.
func checkPrometheus(t *testing.T, command []string) {
	t.Helper()
	observability := filepath.Join(root, "examples/observability")
	config := read(t, filepath.Join(observability, "prometheus.yml"))
	rules, err := filepath.Abs(filepath.Join(root, "charts/rlsidecar/files/rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "prometheus.yml")
	writeFile(t, path, strings.Replace(config, "/etc/prometheus/rules.yaml", rules, 1))
	if out, err := exec.Command(tooltest.Path(t, "promtool"), "check", "config", path).CombinedOutput(); err != nil || !strings.Contains(string(out), "rules found") {
		t.Errorf("%v\n%s", err, out)
	}
	source := read(t, filepath.Join(observability, "grafana/datasource.yaml"))
	_, port, _ := strings.Cut(command[len(command)-1], "--web.listen-address=:")
	if port == "" || !strings.Contains(source, "url: http://127.0.0.1:"+port+"\n") {
		t.Errorf("Prometheus listens on port %q, and Grafana reads\n%s", port, source)
	}
}
