package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
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

func manifests(t *testing.T, name string) []object {
	t.Helper()
	data, err := os.ReadFile(kubernetes + name)
	if err != nil {
		t.Fatal(err)
	}
	var all []object
	for decoder := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var one object
		err := decoder.Decode(&one)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, one)
	}
}

func manifest(t *testing.T, name, kind string) object {
	t.Helper()
	for _, one := range manifests(t, name) {
		if one["kind"] == kind {
			return one
		}
	}
	t.Fatalf("%s has no %s", name, kind)
	return nil
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
// hand from the gateways' source code.
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

func readRendered(t *testing.T, name string) rendered {
	t.Helper()
	data, err := os.ReadFile(kubernetes + "rendered/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var r rendered
	decoder := yaml.NewDecoder(bytes.NewReader(data))
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
	at := func(port int) object {
		return object{"socket_address": object{"address": s.addr, "port_value": port}}
	}
	route := merge(object{"match": object{"prefix": "/"}, "route": object{"cluster": "app"}}, r.Route)
	host := merge(object{"name": "shop", "domains": []any{"*"}, "routes": []any{route}}, r.VirtualHost)
	config := object{
		"admin": object{"address": at(9901)},
		"static_resources": object{
			"listeners": []any{merge(object{"name": "http", "address": at(10000), "filter_chains": []any{object{"filters": []any{object{
				"name": "envoy.filters.network.http_connection_manager",
				"typed_config": merge(typed("network.http_connection_manager.v3.HttpConnectionManager", object{
					"stat_prefix": "http", "use_remote_address": true, "route_config": object{"virtual_hosts": []any{host}},
					"http_filters": append(slices.Clone(r.Before), r.Filter, object{"name": "envoy.filters.http.router", "typed_config": typed("http.router.v3.Router", nil)}),
				}), r.Manager),
			}}}}}, r.Listener)},
			"clusters": []any{r.Cluster, object{"name": "app", "type": "STATIC", "load_assignment": object{"cluster_name": "app", "endpoints": []any{
				object{"lb_endpoints": []any{object{"endpoint": object{"address": at(9000)}}}},
			}}}},
		},
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []change{
		{"timeout: 0.05s", "timeout: 10s"}, // on a busy machine 50 ms may be too short
		{"rlsidecar.rate-limits.svc.cluster.local", s.addr}, {"envoy-ratelimit.envoy-gateway-system.svc.cluster.local", s.addr},
	} {
		text = bytes.ReplaceAll(text, []byte(c.old), []byte(c.new))
	}
	path := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
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
	if err := os.WriteFile(filepath.Join(dir, "edge.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The sidecar has the arguments of the Deployment, except for addresses.
func newRecipe(t *testing.T, limits object) *stack {
	t.Helper()
	s := sidecarStack(t, "")
	s.serveApplication(t)
	pod := at[object](t, manifest(t, "rlsidecar.yaml", "Deployment"), "spec", "template", "spec")
	container := pod["containers"].([]any)[0].(object)
	var args []string
	for _, arg := range container["command"].([]any)[1:] {
		switch arg := arg.(string); arg {
		case "/etc/rlsidecar":
			args = append(args, limitsFile(t, limits))
		case ":8080", ":8081":
			args = append(args, s.addr+arg)
		default:
			args = append(args, arg)
		}
	}
	s.sidecar = start(t, sidecarProgram, append(args, "--admin-listen", s.addr+":6070", "--drain-delay", "0s")...)
	for _, port := range []string{":8081", ":8080"} {
		awaitPort(t, s.sidecar, "tcp", s.addr+port)
	}
	return s
}

var (
	perAddress = bucket{20, time.Second} // the limit of addresses in examples/kubernetes/rlsidecar.yaml
	perMinute  = bucket{5, 0}            // the fixed window in envoy-gateway.yaml; drain cannot use it, because it divides by each, which is 0
)

// startRecipe starts a recipe with a real Envoy, with these listener filters. If render is nil, Envoy's
// configuration is the one that the gateway's own code has made. ofGateway reports whether the limits are the
// gateway's, not those of rlsidecar.yaml.
func startRecipe(t *testing.T, name string, render func(*testing.T) rendered, filters ...any) (s *stack, ofGateway bool) {
	t.Helper()
	if render == nil {
		r := readTranslated(t, name+".yaml")
		s = newRecipe(t, nil)
		s.runEnvoy(t, s.translatedFile(t, r, filters...))
		return s, false
	}
	r := render(t)
	if len(filters) > 0 {
		r.Listener = object{"listener_filters": filters}
	}
	s = newRecipe(t, r.Limits)
	s.runEnvoy(t, s.gatewayFile(t, r))
	return s, r.Limits != nil
}

func TestKubernetesEnvoys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		render func(*testing.T) rendered // nil means the configuration that the gateway's own code has made
		keys   bucket                    // the bucket of a value of x-api-key; zero if the recipe does not send that header
		gone   int                       // the status of an answer while the sidecar does not run
	}{
		{"istio", istioRenders, perKey, 503},
		{"contour", nil, perKey, 500},
		{"kgateway", func(t *testing.T) rendered { t.Helper(); return readRendered(t, "kgateway.yaml") }, bucket{}, 500},
		{"envoy-gateway", func(t *testing.T) rendered { t.Helper(); return readRendered(t, "envoy-gateway.yaml") }, perMinute, 500},
	} {
		t.Run(c.name, func(t *testing.T) {
			tooltest.Path(t, "envoy") // skips the test if Envoy is missing
			s, ofGateway := startRecipe(t, c.name, c.render)
			switch c.keys {
			case bucket{}:
			case perMinute:
				sameMinute(t, func(attempt int) bool {
					codes := make(map[int]int)
					for range 2 * perMinute.capacity {
						codes[s.key(t, "alice"+strconv.Itoa(attempt))().code]++
					}
					return codes[200] == perMinute.capacity && codes[429] == perMinute.capacity
				})
			default:
				c.keys.drain(t, s.key(t, "alice"))
			}
			if a := s.key(t, "bob")(); a.code != http.StatusOK {
				t.Errorf("another key: status %d, want 200", a.code)
			}
			if !ofGateway {
				perAddress.drain(t, func() answer { return s.get(t, "127.66.7.1", "/") })
			}
			s.sidecar.kill()
			if a := s.get(t, "127.66.7.2", "/", "x-api-key: carol"); a.code != c.gone {
				t.Errorf("without rlsidecar: %d, want %d", a.code, c.gone)
			}
		})
	}
}

// TestKubernetesEnvoysUnderAttack sends keyAttacks, and requests from the addresses of one network, through
// each recipe. The README of the recipes lists known gaps. The test also fails if a listed gap no longer
// exists.
func TestKubernetesEnvoysUnderAttack(t *testing.T) {
	t.Parallel()
	perYear := bucket{perMinute.capacity, 365 * 24 * time.Hour} // The windows are so long that none ends during the test.
	for _, c := range []struct {
		name      string
		render    func(*testing.T) rendered
		keys      bucket   // the buckets of keys in the recipe; zero if it does not count keys
		gaps      []string // names of keyAttacks that are known to succeed
		addresses bool     // the recipe counts addresses
		separate  bool     // each address of a network has a bucket of its own
	}{
		{"istio", istioRenders, perKey, nil, true, false},
		{"contour", nil, perKey, lineGaps, true, true},
		{"kgateway", func(t *testing.T) rendered { t.Helper(); return readRendered(t, "kgateway.yaml") }, bucket{}, nil, true, true},
		{"envoy-gateway", func(t *testing.T) rendered { t.Helper(); return inAYear(t, readRendered(t, "envoy-gateway.yaml")) },
			perYear, []string{"an empty first line"}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tooltest.Path(t, "envoy") // skips the test if Envoy is missing
			s, _ := startRecipe(t, c.name, c.render, object{
				"name": "envoy.filters.listener.proxy_protocol",
				"typed_config": object{
					"@type":                                 "type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol",
					"allow_requests_without_proxy_protocol": true,
				},
			})
			g := s.asGateway()
			if c.keys != (bucket{}) {
				g.keys, g.gaps = c.keys, c.gaps
				g.keysCannotBeRespelled(t)
			}
			if c.addresses {
				g.networkHasOneBucket(t, c.separate)
			}
		})
	}
}

// lineGaps names the keyAttacks that succeed on a gateway that counts the first of several lines of a header
// but forwards all of them, and that forwards names with underscores.
var lineGaps = []string{
	"junk in a first line", "an empty first line", "names of another case", "junk in a first line of HTTP/2",
	"underscores in the name", "underscores in a second name", "one underscore in a second name",
	"another underscore in a second name", "underscores in a second name of HTTP/2",
}

func inAYear(t *testing.T, r rendered) rendered {
	t.Helper()
	limit := r.Limits["descriptors"].([]any)[0].(object)["descriptors"].([]any)[0].(object)
	at[object](t, limit, "rate_limit")["unit"] = "year"
	return r
}

// networkHasOneBucket sends requests from more addresses of one /64 than a bucket has units. The addresses
// must share a bucket, or, if separate is true, each must have a bucket of its own.
func (g gateway) networkHasOneBucket(t *testing.T, separate bool) {
	t.Helper()
	from, passed, tries := time.Now(), 0, perAddress.capacity+10
	for i := range tries {
		if g.http1(t, g.proxied, "", "/", header{"PROXY", fmt.Sprintf("2001:db8:1:7::%x", i+1)}).code == http.StatusOK {
			passed++
		}
	}
	most := perAddress.capacity + int(time.Since(from)/perAddress.each)
	switch {
	case separate && passed < tries && most < tries:
		t.Errorf("%d of %d addresses of one /64 passed: the README says that each has a bucket of its own", passed, tries)
	case !separate && passed > most:
		t.Errorf("%d addresses of one /64 passed, want at most %d", passed, most)
	}
	if code := g.http1(t, g.proxied, "", "/", header{"PROXY", "2001:db8:1:8::1"}).code; code != http.StatusOK {
		t.Errorf("another /64: status %d, want 200", code)
	}
}

// newIngressNginx starts an NGINX with the configuration that ingress-nginx makes of the recipe.
func newIngressNginx(t *testing.T) *front {
	t.Helper()
	program := tooltest.Path(t, "nginx")
	annotations := at[object](t, manifest(t, "ingress-nginx.yaml", "Ingress"), "metadata", "annotations")
	annotation := func(name string) string {
		t.Helper()
		return at[string](t, annotations, "nginx.ingress.kubernetes.io/"+name)
	}
	data, err := os.ReadFile(kubernetes + "rendered/ingress-nginx.conf")
	if err != nil {
		t.Fatal(err)
	}
	s := newRecipe(t, nil)
	text := string(data)
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
	for _, c := range []change{{"_timeout 50ms", "_timeout 10s"}, {"_timeout 100ms", "_timeout 10s"}, {"127.0.0.1", s.addr}, {"pid nginx.pid;", "pid nginx.pid;" + userDirective()}} {
		if !strings.Contains(text, c.old) {
			t.Fatalf("no %q", c.old)
		}
		text = strings.ReplaceAll(text, c.old, c.new)
	}
	f := &front{stack: s, dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(f.dir, "nginx.conf"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f.run(t, program, "-p", f.dir, "-e", "stderr", "-c", "nginx.conf")
	return f
}

func TestKubernetesIngressNginx(t *testing.T) {
	t.Parallel()
	f := newIngressNginx(t)
	denial := perKey.drain(t, f.asKey(t, "alice"))
	if got, err := strconv.Atoi(denial.header.Get("Retry-After")); err != nil || got < 1 || got > 6 {
		t.Errorf("Retry-After %q, want 1 to 6 s", denial.header.Get("Retry-After"))
	}
	gateway{stack: f.stack, port: "8000"}.keysCannotBeRespelled(t)
	path := 0
	perAddress.drain(t, func() answer {
		// Forged headers or another path do not avoid the limit.
		path++
		return f.send(t, "127.66.7.3", "/"+strconv.Itoa(path), append(forged, "X-Original-URL: http://a/")...)
	})
	f.sidecar.kill()
	if a := f.asKey(t, "bob")(); a.code != http.StatusServiceUnavailable {
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
	var eg object
	for _, one := range manifests(t, "envoy-gateway.yaml") {
		if one["kind"] == "BackendTrafficPolicy" {
			eg = one
		}
	}
	rule := at[[]any](t, eg, "spec", "rateLimit", "global", "rules")[0].(object)
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
