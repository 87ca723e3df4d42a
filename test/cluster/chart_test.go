package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	root       = "../.."
	ours       = root + "/charts/rlsidecar"
	prometheus = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
)

func (c *cluster) helm(t *testing.T, major int, args ...string) []byte {
	t.Helper()
	program, err := filepath.Abs(fmt.Sprintf("%s/.tools/bin/helm%d", root, major))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("there is no %s; scripts/install-tools.sh helm builds it", program)
	}
	cmd := exec.Command(program, args...)
	home := filepath.Join(filepath.Dir(c.kubeconfig), "helm")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("helm%d %s: %v\n%s%s", major, strings.Join(args, " "), err, out, stderr.String())
	}
	return out
}

func installsTheChart(t *testing.T, c *cluster) {
	t.Helper()
	c.define(t, prometheus, "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml")
	c.define(t, prometheus, "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml")
	for _, major := range []int{3, 4} {
		for name, args := range cases(t, c, major) {
			t.Run(fmt.Sprintf("helm%d/%s", major, name), func(t *testing.T) {
				c.applied(t, c.namespace(t, fmt.Sprintf("applied-%d-%s", major, name)), major, args)
				c.installed(t, c.namespace(t, fmt.Sprintf("installed-%d-%s", major, name)), major, args)
			})
		}
	}
}

func cases(t *testing.T, c *cluster, major int) map[string][]string {
	t.Helper()
	files, err := filepath.Glob(ours + "/ci/*-values.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no values in %s/ci: %v", ours, err)
	}
	made := map[string][]string{}
	for _, file := range files {
		made[strings.TrimSuffix(filepath.Base(file), "-values.yaml")] = []string{ours, "--values", file}
	}
	// The application depends on a copy of the chart, in a temporary folder.
	dir := t.TempDir()
	for _, folder := range []string{"charts/rlsidecar", "test/chart/testdata/app"} {
		if err := os.CopyFS(filepath.Join(dir, folder), os.DirFS(filepath.Join(root, folder))); err != nil {
			t.Fatal(err)
		}
	}
	app := filepath.Join(dir, "test/chart/testdata/app")
	c.helm(t, major, "dependency", "build", app)
	made["app"] = []string{app}
	return made
}

func (c *cluster) applied(t *testing.T, namespace string, major int, args []string) {
	t.Helper()
	all := objects(t, c.helm(t, major, append([]string{"template", "x", "--namespace", namespace, "--kube-version", "1.36.0"}, args...)...))
	if len(all) == 0 {
		t.Fatal("the chart renders no object")
	}
	for _, o := range all {
		if err := c.apply(t.Context(), o, namespace); err != nil {
			t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
		if o.GetKind() != "Deployment" {
			continue
		}
		if err := c.apply(t.Context(), pod(t, o), namespace); err != nil {
			t.Errorf("a pod of %s: %v", o.GetName(), err)
		}
	}
}

func (c *cluster) installed(t *testing.T, namespace string, major int, args []string) {
	t.Helper()
	c.helm(t, major, append([]string{"install", "x", "--namespace", namespace}, args...)...)
	all := objects(t, c.helm(t, major, "get", "manifest", "x", "--namespace", namespace))
	if there := c.left(t, all, namespace); len(there) != len(all) {
		t.Errorf("the release has %v, want %d objects", there, len(all))
	}
	c.helm(t, major, append([]string{"upgrade", "x", "--namespace", namespace, "--set", "podAnnotations.again=yes"}, args...)...)
	for _, o := range all {
		if o.GetKind() != "Deployment" || o.GetName() != "x-rlsidecar" {
			continue
		}
		where, err := c.pathOf(o, namespace)
		if err != nil {
			t.Fatal(err)
		}
		now, err := where.Get(t.Context(), o.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := unstructured.NestedString(now.Object, "spec", "template", "metadata", "annotations", "again"); got != "yes" || err != nil {
			t.Errorf("after the upgrade the annotation is %q, %v; want yes", got, err)
		}
	}
	c.helm(t, major, "uninstall", "x", "--namespace", namespace)
	if there := c.left(t, all, namespace); len(there) != 0 {
		t.Errorf("after the uninstallation %v still exist", there)
	}
}
