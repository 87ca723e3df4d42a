package chart

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/helm-unittest/helm-unittest/pkg/unittest"
	"github.com/helm-unittest/helm-unittest/pkg/unittest/printer"
	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

const (
	root  = "../.."
	ours  = root + "/charts/rlsidecar"
	limit = "/etc/rlsidecar/limits"
)

// versions are the versions of Kubernetes for which the rendered objects must be valid.
var versions = []string{"1.25.0", "1.28.0", "1.31.0", "1.34.0", "1.37.0"}

func TestSuites(t *testing.T) {
	var out bytes.Buffer
	plain := false
	runner := unittest.TestRunner{Printer: printer.NewPrinter(&out, &plain), Strict: true, TestFiles: []string{"tests/*_test.yaml"}}
	if !runner.RunV3([]string{ours}) {
		t.Errorf("%s", out.String())
	}
	if !regexp.MustCompile(`(?m)^Tests: +[1-9]`).MatchString(out.String()) {
		t.Errorf("no suite has run:\n%s", out.String())
	}
}

type object = map[string]any

func at(o any, path ...any) any {
	for _, step := range path {
		switch key := step.(type) {
		case string:
			m, _ := o.(object)
			o = m[key]
		case int:
			list, _ := o.([]any)
			if key >= len(list) {
				return nil
			}
			o = list[key]
		}
	}
	return o
}

func load(t *testing.T, path string) *chart.Chart {
	t.Helper()
	c, err := loader.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// render uses the default values of the chart if file is "".
func render(t *testing.T, c *chart.Chart, file string) []object {
	t.Helper()
	values := chartutil.Values{}
	if file != "" {
		var err error
		if values, err = chartutil.ReadValuesFile(file); err != nil {
			t.Fatal(err)
		}
	}
	if err := chartutil.ProcessDependenciesWithMerge(c, values); err != nil {
		t.Fatal(err)
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = chartutil.KubeVersion{Version: "v1.34.0", Major: "1", Minor: "34"}
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "x", Namespace: "edge"}, capabilities)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Engine{Strict: true}.Render(c, all)
	if err != nil {
		t.Fatal(err)
	}
	var objects []object
	for name, text := range files {
		if filepath.Ext(name) != ".yaml" {
			continue
		}
		for d := yaml.NewDecoder(strings.NewReader(text)); ; {
			var o object
			if err := d.Decode(&o); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, text)
			}
			if o != nil {
				objects = append(objects, o)
			}
		}
	}
	slices.SortFunc(objects, func(a, b object) int { return strings.Compare(a["kind"].(string), b["kind"].(string)) })
	return objects
}

// cases returns the objects that the chart renders with each file of values in ci/, and those of an
// application with a sidecar, by the name of the file or "app".
func cases(t *testing.T) map[string][]object {
	t.Helper()
	files, err := filepath.Glob(ours + "/ci/*-values.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no values in %s/ci: %v", ours, err)
	}
	made := map[string][]object{}
	for _, file := range files {
		made[filepath.Base(file)] = render(t, load(t, ours), file)
	}
	app := load(t, "testdata/app")
	app.AddDependency(load(t, ours))
	made["app"] = render(t, app, "")
	return made
}

func TestKubernetesAcceptsTheManifests(t *testing.T) {
	python := kubernetesValidate(t)
	for name, objects := range cases(t) {
		var text bytes.Buffer
		for _, o := range objects {
			if o["kind"] == "ServiceMonitor" || o["kind"] == "PrometheusRule" { // a custom resource; the tests in tests/ check it
				continue
			}
			data, err := yaml.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&text, "---\n%s", data)
		}
		file := filepath.Join(t.TempDir(), "objects.yaml")
		writeFile(t, file, text.String())
		for _, version := range versions {
			if name == "app" && version < "1.29" {
				continue // this version of Kubernetes has no native sidecars
			}
			if out, err := python("--strict", "--quiet", "-k", version, file).CombinedOutput(); err != nil {
				t.Errorf("%s, Kubernetes %s: %v\n%s", name, version, err, out)
			}
		}
	}
}

// TestRulesAndDashboardArriveAsTheyAre checks that Prometheus and Grafana get the files of the chart
// unchanged. These files contain templates of their own, which Helm must not render.
func TestRulesAndDashboardArriveAsTheyAre(t *testing.T) {
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(ours, "files", name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var rules object
	if err := yaml.Unmarshal(read("rules.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, o := range render(t, load(t, ours), ours+"/ci/everything-values.yaml") {
		switch {
		case o["kind"] == "PrometheusRule":
			found++
			if !reflect.DeepEqual(o["spec"], rules) {
				t.Errorf("the PrometheusRule has other rules: %v", o["spec"])
			}
		case at(o, "data", "rlsidecar.json") != nil:
			found++
			if at(o, "data", "rlsidecar.json") != string(read("dashboard.json")) {
				t.Error("the ConfigMap has another dashboard")
			}
		}
	}
	if found != 2 {
		t.Errorf("the chart renders %d of the PrometheusRule and the dashboard's ConfigMap, want both", found)
	}
}

func kubernetesValidate(t *testing.T) func(args ...string) *exec.Cmd {
	t.Helper()
	installed, err := filepath.Abs(root + "/.tools/kubernetes-validate")
	if err != nil {
		t.Fatal(err)
	}
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command("python3", append([]string{"-m", "kubernetes_validate"}, args...)...)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+installed)
		return cmd
	}
	if out, err := command("--version").CombinedOutput(); err != nil {
		remedy := fmt.Sprintf("there is no kubernetes-validate here; scripts/install-tools.sh installs it: %v\n%s", err, out)
		if os.Getenv("CI") != "" {
			t.Fatal(remedy)
		}
		t.Skip(remedy)
	}
	return command
}

// TestRlsidecarAcceptsTheFlags starts the program with the flags of the pods. It must end with exit code 3,
// because the files of limits are missing here. A wrong flag has another exit code.
func TestRlsidecarAcceptsTheFlags(t *testing.T) {
	program := build(t)
	known, err := os.ReadFile("../../docs/reference/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	containers := 0
	for name, objects := range cases(t) {
		for _, o := range objects {
			pod := at(o, "spec", "template", "spec")
			for _, c := range append(list(at(pod, "initContainers")), list(at(pod, "containers"))...) {
				if at(c, "name") != "rlsidecar" {
					continue
				}
				containers++
				command := append(words(at(c, "command")), words(at(c, "args"))...)
				if command[0] != "/bin/rlsidecar" {
					t.Fatalf("%s: got %v; want /bin/rlsidecar", name, command)
				}
				cmd := exec.Command(program, command[1:]...)
				for _, variable := range list(at(c, "env")) {
					key, _ := at(variable, "name").(string)
					if strings.HasPrefix(key, "RLSIDECAR_") && !bytes.Contains(known, []byte("`"+key+"`")) {
						t.Errorf("%s: rlsidecar has no variable %s", name, key)
					}
					value := "value"
					if strings.HasSuffix(key, "_URL") {
						value = "rediss://redis:6379"
					}
					cmd.Env = append(cmd.Env, key+"="+value)
				}
				out, err := cmd.CombinedOutput()
				if cmd.ProcessState.ExitCode() != 3 || !bytes.Contains(out, []byte(limit)) {
					t.Errorf("%s: %v: got %v, want exit code 3 and a message about %s\n%s", name, command, err, limit, out)
				}
			}
			if o["kind"] == "ConfigMap" && !strings.HasSuffix(at(o, "metadata", "name").(string), "-dashboard") {
				check(t, program, name, o)
			}
		}
	}
	if containers < 4 {
		t.Errorf("the test started %d containers, want at least 4", containers)
	}
}

func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "rlsidecar")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", program, "./cmd/rlsidecar")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build rlsidecar: %v\n%s", err, out)
	}
	return program
}

func check(t *testing.T, program, name string, configMap object) {
	t.Helper()
	folder := t.TempDir()
	files, _ := configMap["data"].(object)
	for file, text := range files {
		writeFile(t, filepath.Join(folder, file), text.(string))
	}
	if out, err := exec.Command(program, "check", folder).CombinedOutput(); err != nil || len(files) == 0 {
		t.Errorf("%s: %d files of limits: %v\n%s", name, len(files), err, out)
	}
}

func list(o any) []any {
	l, _ := o.([]any)
	return l
}

func words(o any) (all []string) {
	for _, word := range list(o) {
		all = append(all, word.(string))
	}
	return all
}
