// Package contour translates examples/kubernetes/contour.yaml to the configuration of Envoy with Contour's own
// code.
package contour

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	kubeyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/projectcontour/contour/apis/projectcontour/v1alpha1"
	"github.com/projectcontour/contour/internal/contourconfig"
	"github.com/projectcontour/contour/internal/dag"
	envoy "github.com/projectcontour/contour/internal/envoy/v3"
	"github.com/projectcontour/contour/internal/k8s"
	"github.com/projectcontour/contour/internal/timeout"
	"github.com/projectcontour/contour/internal/xdscache"
	xds "github.com/projectcontour/contour/internal/xdscache/v3"
	"github.com/projectcontour/contour/pkg/config"
)

const (
	recipe   = "../../../../examples/kubernetes/contour.yaml"
	rendered = "../../../../examples/kubernetes/rendered/contour.yaml"
)

const referred = `
apiVersion: v1
kind: Service
metadata: {name: rlsidecar, namespace: rate-limits}
spec: {ports: [{port: 8081}]}
---
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: default}
spec: {ports: [{port: 80}]}
`

func TestRendered(t *testing.T) {
	objects := read(t)
	spec := settings(t, objects)
	log := logrus.New()
	log.SetOutput(t.Output())
	builder := &dag.Builder{
		Source: dag.KubernetesCache{FieldLogger: log},
		Processors: []dag.Processor{ // the processors of getDAGBuilder in cmd/contour/serve.go that the recipe needs
			&dag.ListenerProcessor{HTTPAddress: spec.Envoy.HTTPListener.Address, HTTPPort: spec.Envoy.HTTPListener.Port, HTTPSAddress: spec.Envoy.HTTPSListener.Address, HTTPSPort: spec.Envoy.HTTPSListener.Port},
			&dag.ExtensionServiceProcessor{FieldLogger: log},
			&dag.HTTPProxyProcessor{GlobalRateLimitService: spec.RateLimitService, SetSourceMetadataOnRoutes: true, DNSLookupFamily: spec.Envoy.Cluster.DNSLookupFamily},
		},
	}
	for _, o := range objects {
		builder.Source.Insert(o)
	}
	graph := builder.Build()
	for _, status := range graph.StatusCache.GetProxyUpdates() {
		for kind, c := range status.Conditions {
			if len(c.Errors) > 0 {
				t.Fatalf("%v: %v", kind, c.Errors)
			}
		}
	}
	gen := envoy.NewEnvoyGen(envoy.EnvoyGenOpt{XDSClusterName: envoy.DefaultXDSClusterName})
	out := map[string][]any{}
	for kind, cache := range map[string]xdscache.ResourceCache{
		"listeners": xds.NewListenerCache(listener(t, spec, objects), *spec.Envoy.Metrics, *spec.Envoy.Health, nil, 0, gen),
		"routes":    &xds.RouteCache{},
		"clusters":  xds.NewClusterCache(gen),
	} {
		cache.OnChange(graph)
		for _, m := range cache.Contents() {
			out[kind] = append(out[kind], plain(t, m))
		}
	}
	compare(t, out)
}

func read(t *testing.T) (objects []runtime.Object) {
	t.Helper()
	data, err := os.ReadFile(recipe)
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := k8s.NewContourScheme()
	if err != nil {
		t.Fatal(err)
	}
	if err := core.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	for documents := kubeyaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(string(data) + "\n---" + referred))); ; {
		buffer := make([]byte, 1<<20)
		n, err := documents.Read(buffer)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		o, _, err := decoder.Decode(buffer[:n], nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, o)
	}
}

// settings reads Contour's configuration file, as convertToContourConfigurationSpec in
// cmd/contour/servecontext.go does.
func settings(t *testing.T, objects []runtime.Object) v1alpha1.ContourConfigurationSpec {
	t.Helper()
	file := find[*core.ConfigMap](t, objects).Data["contour.yaml"]
	parameters, err := config.Parse(strings.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	if err := parameters.Validate(); err != nil {
		t.Fatal(err)
	}
	spec := contourconfig.Defaults()
	name, p := k8s.NamespacedNameFrom(parameters.RateLimitService.ExtensionService), parameters.RateLimitService
	spec.RateLimitService = &v1alpha1.RateLimitServiceConfig{
		ExtensionService: v1alpha1.NamespacedName{Name: name.Name, Namespace: name.Namespace},
		Domain:           p.Domain, FailOpen: &p.FailOpen, EnableXRateLimitHeaders: &p.EnableXRateLimitHeaders,
		EnableResourceExhaustedCode: &p.EnableResourceExhaustedCode, DefaultGlobalRateLimitPolicy: p.DefaultGlobalRateLimitPolicy,
	}
	return spec
}

// listener returns the listener's part of spec, as doServe and setupRateLimitService in cmd/contour/serve.go do.
func listener(t *testing.T, spec v1alpha1.ContourConfigurationSpec, objects []runtime.Object) xds.ListenerConfig {
	t.Helper()
	service := find[*v1alpha1.ExtensionService](t, objects)
	name := types.NamespacedName{Namespace: spec.RateLimitService.ExtensionService.Namespace, Name: spec.RateLimitService.ExtensionService.Name}
	if service.Name != name.Name || service.Namespace != name.Namespace {
		t.Fatalf("no ExtensionService %s", name)
	}
	response, err := timeout.Parse(service.Spec.TimeoutPolicy.Response)
	if err != nil {
		t.Fatal(err)
	}
	timeouts, err := contourconfig.ParseTimeoutPolicy(spec.Envoy.Timeouts)
	if err != nil {
		t.Fatal(err)
	}
	return xds.ListenerConfig{
		HTTPAccessLog: spec.Envoy.HTTPListener.AccessLog, AccessLogType: spec.Envoy.Logging.AccessLogFormat, AccessLogLevel: spec.Envoy.Logging.AccessLogLevel,
		Timeouts: timeouts, AllowChunkedLength: !*spec.Envoy.Listener.DisableAllowChunkedLength, MergeSlashes: !*spec.Envoy.Listener.DisableMergeSlashes,
		ServerHeaderTransformation: spec.Envoy.Listener.ServerHeaderTransformation, XffNumTrustedHops: *spec.Envoy.Network.XffNumTrustedHops,
		RateLimitConfig: &xds.RateLimitConfig{
			ExtensionServiceConfig: xds.ExtensionServiceConfig{ExtensionService: name, Timeout: response},
			Domain:                 spec.RateLimitService.Domain, FailOpen: ptr.Deref(spec.RateLimitService.FailOpen, false),
			EnableXRateLimitHeaders:     ptr.Deref(spec.RateLimitService.EnableXRateLimitHeaders, false),
			EnableResourceExhaustedCode: ptr.Deref(spec.RateLimitService.EnableResourceExhaustedCode, false),
		},
	}
}

func find[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	for _, o := range objects {
		if found, ok := o.(T); ok {
			return found
		}
	}
	t.Fatalf("no %T", *new(T))
	return *new(T)
}

func plain(t *testing.T, m proto.Message) (value any) {
	t.Helper()
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err == nil {
		err = json.Unmarshal(text, &value)
	}
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// If the environment variable UPDATE_RENDERED is set, compare writes the file first.
func compare(t *testing.T, out map[string][]any) {
	t.Helper()
	text, err := yaml.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	text = append([]byte("# The configuration of Envoy that Contour's own code makes from ../contour.yaml. test/cluster/gateways/contour writes\n# this file, and test/e2e runs it.\n"), text...)
	if os.Getenv("UPDATE_RENDERED") != "" {
		if err := os.WriteFile(rendered, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(rendered); err != nil || !bytes.Equal(have, text) {
		t.Errorf("%s differs from the configuration that Contour makes from the recipe (%v); UPDATE_RENDERED=1 go test writes it:\n%s", rendered, err, text)
	}
}
