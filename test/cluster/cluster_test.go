package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
)

const patience = time.Minute

type cluster struct {
	kubeconfig string
	client     dynamic.Interface
	kinds      *restmapper.DeferredDiscoveryRESTMapper
}

func TestCluster(t *testing.T) {
	c := newCluster(t)
	t.Run("accepts the chart", func(t *testing.T) { installsTheChart(t, c) })
	t.Run("accepts the recipes", func(t *testing.T) { appliesTheRecipes(t, c) })
	t.Run("refuses mistakes", func(t *testing.T) { refusesMistakes(t, c) })
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{kubeconfig: startServer(t)}
	eventually(t, "the API server answers", func() error {
		config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
		if err != nil {
			return err // the server has not made its certificate yet
		}
		config.QPS = -1
		if c.client, err = dynamic.NewForConfig(config); err != nil {
			return err
		}
		d, err := discovery.NewDiscoveryClientForConfig(config)
		if err != nil {
			return err
		}
		c.kinds = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(d))
		_, err = d.RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
		return err
	})
	return c
}

func eventually(t *testing.T, condition string, try func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v this is still not true: %s: %v", patience, condition, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// The namespace of o takes precedence over the parameter namespace.
func (c *cluster) pathOf(o *unstructured.Unstructured, namespace string) (dynamic.ResourceInterface, error) {
	if own := o.GetNamespace(); own != "" {
		namespace = own
	}
	kind := o.GroupVersionKind()
	m, err := c.kinds.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		return c.client.Resource(m.Resource).Namespace(namespace), nil
	}
	return c.client.Resource(m.Resource), nil
}

// apply sends o to the server, which refuses unknown fields.
func (c *cluster) apply(ctx context.Context, o *unstructured.Unstructured, namespace string) error {
	where, err := c.pathOf(o, namespace)
	if err != nil {
		return err
	}
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	_, err = where.Patch(ctx, o.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: "test", FieldValidation: metav1.FieldValidationStrict})
	return err
}

// namespace creates a namespace that accepts only pods of the restricted Pod Security Standard.
func (c *cluster) namespace(t *testing.T, name string) string {
	t.Helper()
	o := object(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+name+", labels: {pod-security.kubernetes.io/enforce: restricted}}")
	if err := c.apply(t.Context(), o, ""); err != nil {
		t.Fatal(err)
	}
	return name
}

func (c *cluster) define(t *testing.T, module, file string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(folder(t, module), file))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects(t, data) {
		if o.GetKind() != "CustomResourceDefinition" {
			continue
		}
		if err := c.apply(t.Context(), o, ""); err != nil {
			t.Fatalf("%s of %s: %v", o.GetName(), module, err)
		}
		eventually(t, o.GetName()+" is served", func() error {
			where, err := c.pathOf(o, "")
			if err != nil {
				return err
			}
			now, err := where.Get(t.Context(), o.GetName(), metav1.GetOptions{})
			if err != nil {
				return err
			}
			conditions, _, err := unstructured.NestedSlice(now.Object, "status", "conditions")
			for _, condition := range conditions {
				if c, ok := condition.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
					return err
				}
			}
			return errors.Join(err, errors.New("not established"))
		})
	}
	c.kinds.Reset()
}

func folder(t *testing.T, module string) string {
	t.Helper()
	var found struct{ Dir, Error string }
	out, err := exec.Command("go", "mod", "download", "-json", module).Output()
	if jsonErr := json.Unmarshal(out, &found); err != nil || jsonErr != nil {
		t.Fatalf("go mod download %s: %v, %v: %s", module, err, jsonErr, found.Error)
	}
	return found.Dir
}

func objects(t *testing.T, data []byte) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 1<<20); ; {
		o := &unstructured.Unstructured{}
		if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
}

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	return objects(t, []byte(text))[0]
}

// pod returns the pod that a controller would make from a Deployment's template.
func pod(t *testing.T, deployment *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	template, ok, err := unstructured.NestedMap(deployment.Object, "spec", "template")
	if err != nil || !ok {
		t.Fatalf("%s has no template: %v", deployment.GetName(), err)
	}
	p := &unstructured.Unstructured{Object: template}
	p.SetAPIVersion("v1")
	p.SetKind("Pod")
	p.SetName(deployment.GetName() + "-0")
	p.SetNamespace(deployment.GetNamespace())
	return p
}

// left returns the objects of a release that still exist.
func (c *cluster) left(t *testing.T, all []*unstructured.Unstructured, namespace string) (names []string) {
	t.Helper()
	for _, o := range all {
		where, err := c.pathOf(o, namespace)
		if err == nil {
			_, err = where.Get(t.Context(), o.GetName(), metav1.GetOptions{})
		}
		if err == nil {
			names = append(names, o.GetKind()+" "+o.GetName())
		} else if !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	return names
}

// refusesMistakes shows that the other tests can fail.
func refusesMistakes(t *testing.T, c *cluster) {
	t.Helper()
	namespace := c.namespace(t, "mistakes")
	for _, test := range []struct{ name, text, want string }{
		{"a wrong key", "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {ports: [{prot: 1, port: 80}]}", "field not declared in schema"},
		{"a wrong key of another's kind", "apiVersion: monitoring.coreos.com/v1\nkind: ServiceMonitor\nmetadata: {name: x}\nspec: {selector: {}, endpoints: [{prot: x}]}", "field not declared in schema"},
		{"a wrong value", "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: x}\nspec: {maxUnavailable: 1, minAvailable: 1}", "cannot be both set"},
		{"a pod with rights", "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: x, image: x}]}", "violates PodSecurity"},
	} {
		if err := c.apply(t.Context(), object(t, test.text), namespace); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}
