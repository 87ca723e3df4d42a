package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	istio        = "istio.io/api@v1.31.1"
	contour      = "github.com/projectcontour/contour@v1.33.8"
	envoyGateway = "github.com/envoyproxy/gateway@v1.9.1"
	itsKinds     = "charts/gateway-helm/charts/crds/crds/"
)

// unknownKinds are kinds that this API server does not know. EnvoyGateway is only in a file that Envoy Gateway
// reads. The others are kinds of kgateway, whose module is not available everywhere.
var unknownKinds = []string{"EnvoyGateway", "GatewayExtension", "TrafficPolicy"}

func appliesTheRecipes(t *testing.T, c *cluster) {
	t.Helper()
	c.define(t, istio, "kubernetes/customresourcedefinitions.gen.yaml")
	c.define(t, contour, "examples/contour/01-crds.yaml")
	c.define(t, envoyGateway, itsKinds+"gatewayapi-crds.yaml")
	c.define(t, envoyGateway, itsKinds+"generated/gateway.envoyproxy.io_backendtrafficpolicies.yaml")
	c.define(t, envoyGateway, itsKinds+"generated/gateway.envoyproxy.io_clienttrafficpolicies.yaml")
	files, err := filepath.Glob(root + "/examples/kubernetes/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recipes: %v", err)
	}
	namespace := c.namespace(t, "recipes")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects(t, data) {
			if slices.Contains(unknownKinds, o.GetKind()) {
				continue
			}
			if o.GetNamespace() != "" {
				c.namespace(t, o.GetNamespace())
			}
			if err := c.apply(t.Context(), o, namespace); err != nil {
				t.Errorf("%s: %s %s: %v", filepath.Base(file), o.GetKind(), o.GetName(), err)
			}
			if o.GetKind() != "Deployment" {
				continue
			}
			if err := c.apply(t.Context(), pod(t, o), namespace); err != nil {
				t.Errorf("%s: a pod of %s: %v", filepath.Base(file), o.GetName(), err)
			}
		}
	}
	c.runsTheSidecar(t, namespace)
}

// runsTheSidecar applies a pod of an application with the containers that docs/packaging.md shows.
func (c *cluster) runsTheSidecar(t *testing.T, namespace string) {
	t.Helper()
	page, err := os.ReadFile(root + "/docs/packaging.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, ok := strings.Cut(string(page), "```yaml\n")
	shown, _, closed := strings.Cut(shown, "```")
	if !ok || !closed {
		t.Fatal("docs/packaging.md shows no sidecar")
	}
	o := object(t, `apiVersion: v1
kind: Pod
metadata: {name: with-sidecar}
spec:
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers: [{name: app, image: app, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]
  `+strings.ReplaceAll(shown, "\n", "\n  "))
	if err := c.apply(t.Context(), o, namespace); err != nil {
		t.Error(err)
	}
}
