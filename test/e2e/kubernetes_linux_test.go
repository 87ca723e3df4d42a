package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

const kubernetes = root + "/examples/kubernetes/"

type object = map[string]any

func manifest(t *testing.T, name, kind string) (found object) {
	t.Helper()
	for decoder := yaml.NewDecoder(strings.NewReader(read(t, kubernetes+name))); found["kind"] != kind; {
		found = nil
		if err := decoder.Decode(&found); err != nil {
			t.Fatalf("%s: no %s: %v", name, kind, err)
		}
	}
	return found
}

func at[T any](t *testing.T, o object, keys ...string) T {
	t.Helper()
	for _, key := range keys[:len(keys)-1] {
		next, ok := o[key].(object)
		if !ok {
			t.Fatalf("no %s of %v", key, keys)
		}
		o = next
	}
	found, ok := o[keys[len(keys)-1]].(T)
	if !ok {
		t.Fatalf("no %v", keys)
	}
	return found
}

// rendered is the configuration that a gateway makes from a recipe. The files that readRendered reads were written by
// hand from the gateways' source code, except for Contour's, which its own code has made.
type rendered struct {
	Filter      object `yaml:"filter"`
	Before      []any  `yaml:"-"`            // HTTP filters before the rate limit filter
	Manager     object `yaml:"manager"`      // further fields of the connection manager
	Listener    object `yaml:"-"`            // further fields of the listener
	VirtualHost object `yaml:"virtual_host"` // further fields of the virtual host
	Route       object `yaml:"route"`        // further fields of the route
	Cluster     object `yaml:"cluster"`
	Limits      object `yaml:"limits"` // nil means the limits of rlsidecar.yaml
}

// readRendered reads a file of examples/kubernetes/rendered.
func readRendered(t *testing.T, name string) (r rendered) {
	t.Helper()
	data := read(t, kubernetes+"rendered/"+name)
	decoder := yaml.NewDecoder(strings.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(&r); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return r
}

// istioRenders applies the patches of istio.yaml as Istio does.
func istioRenders(t *testing.T) rendered {
	t.Helper()
	var r rendered
	for _, p := range at[[]any](t, manifest(t, "istio.yaml", "EnvoyFilter"), "spec", "configPatches") {
		patch := p.(object)
		how := fmt.Sprint(patch["applyTo"], " ", at[string](t, patch, "patch", "operation"))
		value := at[object](t, patch, "patch", "value")
		switch how {
		case "CLUSTER ADD":
			r.Cluster = value
		case "HTTP_FILTER INSERT_BEFORE":
			if r.Filter != nil { // each filter goes directly before the router
				r.Before = append(r.Before, r.Filter)
			}
			r.Filter = value
		case "NETWORK_FILTER MERGE":
			r.Manager = at[object](t, value, "typed_config")
		case "VIRTUAL_HOST MERGE":
			r.VirtualHost = value
		default:
			t.Fatalf("istio.yaml: this test does not know %s: add it", how)
		}
	}
	return r
}

// gatewayFile writes the configuration of an Envoy with one listener, and with longer timeouts.
func (s *stack) gatewayFile(t *testing.T, r rendered) string {
	t.Helper()
	merge := func(base, more object) object {
		for key, value := range more {
			if into, ok := base[key].(object); ok {
				maps.Copy(into, value.(object))
				continue
			}
			base[key] = value
		}
		return base
	}
	typed := func(name string, more object) object {
		return merge(object{"@type": "type.googleapis.com/envoy.extensions.filters." + name}, more)
	}
	route := merge(object{"match": object{"prefix": "/"}, "route": object{"cluster": "app"}}, r.Route)
	host := merge(object{"name": "shop", "domains": []any{"*"}, "routes": []any{route}}, r.VirtualHost)
	manager := merge(typed("network.http_connection_manager.v3.HttpConnectionManager", object{
		"stat_prefix": "http", "use_remote_address": true, "route_config": object{"virtual_hosts": []any{host}},
		"http_filters": append(slices.Clone(r.Before), r.Filter, object{"name": "envoy.filters.http.router", "typed_config": typed("http.router.v3.Router", nil)}),
	}), r.Manager)
	filters := []any{object{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}}
	listener := merge(object{"name": "http", "address": s.address(10000), "filter_chains": []any{object{"filters": filters}}}, r.Listener)
	text, err := yaml.Marshal(object{
		"admin": object{"address": s.address(9901)},
		"static_resources": object{"listeners": []any{listener}, "clusters": []any{r.Cluster, object{
			"name": "app", "type": "STATIC", "load_assignment": object{"cluster_name": "app", "endpoints": []any{
				object{"lb_endpoints": []any{object{"endpoint": object{"address": s.address(9000)}}}},
			}},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s.writeText(t, "envoy.yaml", strings.NewReplacer(
		"timeout: 0.05s", "timeout: 10s", "timeout: 0.050s", "timeout: 10s", // on a busy machine 50 ms may be too short
		"rlsidecar.rate-limits.svc.cluster.local", s.addr, "envoy-ratelimit.envoy-gateway-system.svc.cluster.local", s.addr,
	).Replace(string(text)))
}

func (s *stack) address(port int) object {
	return object{"socket_address": object{"address": s.addr, "port_value": port}}
}

func limitsFile(t *testing.T, others object) string {
	t.Helper()
	text := []byte(at[string](t, manifest(t, "rlsidecar.yaml", "ConfigMap"), "data", "edge.yaml"))
	if others != nil {
		var err error
		if text, err = yaml.Marshal(others); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	// Clients in a cluster have addresses of its network; the test's clients have loopback addresses.
	text = bytes.ReplaceAll(text, []byte("10.0.0.0/8"), []byte("127.0.0.0/8"))
	writeFile(t, filepath.Join(dir, "edge.yaml"), string(text))
	return dir
}

// newRecipe starts the sidecar with the arguments of the Deployment, except for addresses.
func newRecipe(t *testing.T, port string, limits object) *stack {
	t.Helper()
	s := newStack(t, port, "")
	s.serveApplication(t)
	pod := at[object](t, manifest(t, "rlsidecar.yaml", "Deployment"), "spec", "template", "spec")
	container := pod["containers"].([]any)[0].(object)
	args := []string(nil)
	for _, arg := range container["command"].([]any)[2:] { // after rlsidecar serve
		switch arg := arg.(string); arg {
		case "/etc/rlsidecar":
			args = append(args, limitsFile(t, limits))
		case ":8080", ":8081":
			args = append(args, s.addr+arg)
		default:
			args = append(args, arg)
		}
	}
	s.sidecar = serve(t, s.addr, args...)
	return s
}

// perAddress is the limit of addresses in examples/kubernetes/rlsidecar.yaml.
var perAddress = bucket{20, time.Second}

// lineGaps names the keyAttacks that succeed on a gateway that counts the first of several lines of a header
// but forwards all of them, and that forwards names with underscores.
var lineGaps = []string{
	"junk in a first line", "an empty first line", "names of another case", "junk in a first line of HTTP/2",
	"underscores in the name", "underscores in a second name", "one underscore in a second name",
	"another underscore in a second name", "underscores in a second name of HTTP/2",
	"junk in a second line", "the same line twice", "bytes that are not UTF-8 in a second line", "junk in a second line of HTTP/2",
}

// TestKubernetesEnvoys sends the attacks through each recipe, with a real Envoy. The README of the recipes lists the
// known gaps. The test also fails if a listed gap no longer exists.
func TestKubernetesEnvoys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		render   func(*testing.T) rendered
		keys     bucket   // the bucket of a value of x-api-key; perAddress if the recipe does not count that header
		gaps     []string // names of keyAttacks that are known to succeed
		separate bool     // each address of a network has a bucket of its own
		gone     int      // the status of an answer while the sidecar does not run
	}{
		{"istio", istioRenders, perKey, nil, false, 503},
		{"contour", func(t *testing.T) rendered { return readRendered(t, "contour.yaml") }, perKey, lineGaps, true, 500},
		{"kgateway", func(t *testing.T) rendered { return readRendered(t, "kgateway.yaml") }, perAddress, nil, true, 500},
		// The windows are so long that none ends during the test.
		{"envoy-gateway", func(t *testing.T) rendered { return inAYear(t, readRendered(t, "envoy-gateway.yaml")) },
			bucket{perMinute, 365 * 24 * time.Hour}, []string{"an empty first line"}, false, 500},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tooltest.Path(t, "envoy") // skips the test if Envoy is missing
			r := c.render(t)
			r.Listener = object{"listener_filters": []any{object{
				"name": "envoy.filters.listener.proxy_protocol",
				"typed_config": object{
					"@type":                                 "type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol",
					"allow_requests_without_proxy_protocol": true,
				},
			}}}
			s := newRecipe(t, "10000", r.Limits)
			s.runEnvoy(t, s.gatewayFile(t, r))
			s.http2, s.proxied, s.keys = s.port, s.port, c.keys
			if c.keys != perAddress {
				t.Run("keys", func(t *testing.T) { s.keysCannotBeRespelled(t, c.gaps...) })
			}
			if c.name != "envoy-gateway" { // its limits are its own
				t.Run("addresses", func(t *testing.T) { s.networkHasOneBucket(t, c.separate) })
			}
			t.Run("tunnels", s.tunnelsAreCounted)
			s.sidecar.kill()
			if a := s.get(t, "127.66.7.2", "/", "x-api-key: carol"); a.code != c.gone {
				t.Errorf("without rlsidecar: %d, want %d", a.code, c.gone)
			}
		})
	}
}

func inAYear(t *testing.T, r rendered) rendered {
	t.Helper()
	limit := r.Limits["descriptors"].([]any)[0].(object)["descriptors"].([]any)[0].(object)
	at[object](t, limit, "rate_limit")["unit"] = "year"
	return r
}

// networkHasOneBucket sends requests from more addresses of one /64 than a bucket has units. The addresses
// must share a bucket, or, if separate is true, each must have a bucket of its own.
func (s *stack) networkHasOneBucket(t *testing.T, separate bool) {
	t.Helper()
	perAddress.drain(t, func() answer { return s.get(t, "127.66.7.1", "/") })
	from, passed, tries := time.Now(), 0, perAddress.capacity+10
	for i := range tries {
		if s.http1(t, s.proxied, "", "/", header{"PROXY", fmt.Sprintf("2001:db8:1:7::%x", i+1)}).code == http.StatusOK {
			passed++
		}
	}
	most := perAddress.mostIn(from)
	switch {
	case separate && passed < tries && most < tries:
		t.Errorf("%d of %d addresses of one /64 passed: the README says that each has a bucket of its own", passed, tries)
	case !separate && passed > most:
		t.Errorf("%d addresses of one /64 passed, want at most %d", passed, most)
	}
	if code := s.http1(t, s.proxied, "", "/", header{"PROXY", "2001:db8:1:8::1"}).code; code != http.StatusOK {
		t.Errorf("another /64: status %d, want 200", code)
	}
}

// TestKubernetesIngressNginx starts an NGINX with the configuration that ingress-nginx makes of the recipe.
func TestKubernetesIngressNginx(t *testing.T) {
	t.Parallel()
	program := tooltest.Path(t, "nginx")
	annotations := at[object](t, manifest(t, "ingress-nginx.yaml", "Ingress"), "metadata", "annotations")
	annotation := func(name string) string {
		t.Helper()
		return at[string](t, annotations, "nginx.ingress.kubernetes.io/"+name)
	}
	text := example(t, "kubernetes/rendered/ingress-nginx.conf")
	for _, name := range []string{"auth", "configuration", "server"} {
		mark := "# " + name + "-snippet\n"
		if strings.Count(text, mark) != 1 {
			t.Fatalf("nginx.conf has no place for the %s-snippet", name)
		}
		text = strings.Replace(text, mark, annotation(name+"-snippet"), 1)
	}
	if url := strings.Replace(annotation("auth-url"), "rlsidecar.rate-limits.svc.cluster.local", "127.0.0.1", 1); !strings.Contains(text, "set $target "+url+";") {
		t.Errorf("%s is not the address in the settings", url)
	}
	s := newRecipe(t, "8000", nil)
	s.writeText(t, "nginx.conf", changed(t, "ingress-nginx.conf", text, change{"_timeout 50ms", "_timeout 10s"}, change{"_timeout 100ms", "_timeout 10s"}, change{"pid nginx.pid;", "pid nginx.pid;" + userDirective()}))
	s.run(t, program, "-p", s.dir, "-e", "stderr", "-c", "nginx.conf")
	denial := perKey.drain(t, s.key(t, "alice"))
	if got, err := strconv.Atoi(denial.header.Get("Retry-After")); err != nil || got < 1 || got > 6 {
		t.Errorf("Retry-After %q, want 1 to 6 s", denial.header.Get("Retry-After"))
	}
	t.Run("keys", func(t *testing.T) { s.keysCannotBeRespelled(t) })
	path := 0
	perAddress.drain(t, func() answer { // Forged headers or another path do not avoid the limit.
		path++
		return s.http1(t, s.port, "127.66.7.3", "/"+strconv.Itoa(path), append(forged, header{"X-Original-URL", "http://a/"})...)
	})
	t.Run("tunnels", s.tunnelsAreCounted)
	s.sidecar.kill()
	if a := s.key(t, "bob")(); a.code != http.StatusServiceUnavailable {
		t.Errorf("without rlsidecar: status %d, want 503", a.code)
	}
}

func TestKubernetesManifestsAgree(t *testing.T) {
	t.Parallel()
	k := at[object](t, manifest(t, "kgateway.yaml", "GatewayExtension"), "spec", "rateLimit")
	config := at[object](t, readRendered(t, "kgateway.yaml").Filter, "typed_config")
	if config["domain"] != k["domain"] || config["failure_mode_deny"] == k["failOpen"] {
		t.Errorf("kgateway: the domain or the failure mode of the recipe %v differs from the rendered filter %v", k, config)
	}
	contour := at[string](t, manifest(t, "contour.yaml", "ConfigMap"), "data", "contour.yaml")
	if !strings.Contains(contour, "domain: edge\n") || !strings.Contains(contour, "failOpen: false ") {
		t.Errorf("Contour: the domain or the failure mode of the recipe differs from the rendered filter:\n%s", contour)
	}
	actions := at[[]any](t, manifest(t, "contour.yaml", "HTTPProxy"), "spec", "virtualhost", "rateLimitPolicy", "global", "descriptors")
	if got, want := len(readRendered(t, "contour.yaml").VirtualHost["rate_limits"].([]any)), len(actions); got != want {
		t.Errorf("Contour: the rendered virtual host sends %d descriptors, the recipe %d", got, want)
	}
	rule := at[[]any](t, manifest(t, "envoy-gateway.yaml", "BackendTrafficPolicy"), "spec", "rateLimit", "global", "rules")[0].(object)
	limit := readRendered(t, "envoy-gateway.yaml").Limits["descriptors"].([]any)[0].(object)["descriptors"].([]any)[0].(object)
	if got, want := at[int](t, limit, "rate_limit", "requests_per_unit"), at[int](t, rule, "limit", "requests"); got != want {
		t.Errorf("Envoy Gateway: the rendered limit allows %d requests, the recipe %d", got, want)
	}
	headers := at[object](t, manifest(t, "envoy-gateway.yaml", "ClientTrafficPolicy"), "spec", "headers")
	set := at[[]any](t, headers, "earlyRequestHeaders", "set")[0].(object)
	early := readRendered(t, "envoy-gateway.yaml").Manager["early_header_mutation_extensions"].([]any)[0].(object)
	mutation := at[[]any](t, early, "typed_config", "mutations")[0].(object)
	if got := at[object](t, mutation, "append", "header"); got["key"] != set["name"] || got["value"] != set["value"] {
		t.Errorf("Envoy Gateway: the rendered header mutation is %v, the recipe sets %v", got, set)
	}
}
