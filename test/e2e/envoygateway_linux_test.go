package e2e

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	conf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/rlsidecar/rlsidecar/internal/testkit/certtest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/rlstest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/sidecartest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/xdstest"
)

// container is the container in examples/kubernetes/rendered/envoy-gateway-deployment.yaml.
type container struct {
	Env            []struct{ Name, Value string }
	StartupProbe   probe `yaml:"startupProbe"`
	ReadinessProbe probe `yaml:"readinessProbe"`
	LivenessProbe  probe `yaml:"livenessProbe"`
}

type probe struct {
	HTTPGet struct {
		Path string
		Port int
	} `yaml:"httpGet"`
}

func (p probe) passes(addr string) bool {
	code, body := fetch(fmt.Sprintf("http://%s:%d%s", addr, p.HTTPGet.Port, p.HTTPGet.Path))
	return code == http.StatusOK && body == "OK" // the body of the reference server
}

// egLimits converts the descriptors of rendered/envoy-gateway.yaml to those that Envoy Gateway streams.
func egLimits(t *testing.T, list []any) (out []*conf.RateLimitDescriptor) {
	t.Helper()
	for _, one := range list {
		o := one.(object)
		d := &conf.RateLimitDescriptor{Key: o["key"].(string)}
		d.Value, _ = o["value"].(string)
		if l, ok := o["rate_limit"].(object); ok {
			d.RateLimit = &conf.RateLimitPolicy{
				RequestsPerUnit: uint32(l["requests_per_unit"].(int)),
				Unit:            conf.RateLimitUnit(conf.RateLimitUnit_value[strings.ToUpper(l["unit"].(string))]),
			}
		}
		if below, ok := o["descriptors"].([]any); ok {
			d.Descriptors = egLimits(t, below)
		}
		out = append(out, d)
	}
	return out
}

// perMinute is the limit in envoy-gateway.yaml.
const perMinute = 5

// aiQuota returns the configuration that Envoy AI Gateway sends for a QuotaPolicy of one backend. The model
// small has one quota. The model large has a quota for each tenant, and one for requests without a tenant.
func aiQuota(perHour uint32) *conf.RateLimitConfig {
	quota := func(key, value string, hourly uint32) *conf.RateLimitDescriptor {
		d := &conf.RateLimitDescriptor{Key: key, Value: value, RateLimit: &conf.RateLimitPolicy{Unit: conf.RateLimitUnit_HOUR, RequestsPerUnit: hourly}}
		d.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 7, protowire.VarintType), 1)) // quota_mode: true; the Go type lacks this field
		return d
	}
	const rest = "rule-1-match--1"
	return &conf.RateLimitConfig{Name: "ai-gateway-quota", Domain: "ai-gateway-quota", Descriptors: []*conf.RateLimitDescriptor{{
		Key: "backend_name", Value: "default/openai", Descriptors: []*conf.RateLimitDescriptor{
			quota("model_name_override", "small", perHour),
			{Key: "model_name_override", Value: "large", Descriptors: []*conf.RateLimitDescriptor{
				quota("rule-0-x-tenant-match-0", "", perHour),
				quota(rest, rest, 1000*perHour),
			}},
		},
	}}}
}

// aiQuotas sends requests as the proxies of Envoy AI Gateway do: 1 hit when a request starts, and as many hits as the
// answer has tokens when it ends. send returns the answer to a request of the quotas' domain, and set sends quotas.
func aiQuotas(t *testing.T, send func(descriptor string, hits int) string, set func(version string, quotas *conf.RateLimitConfig)) {
	t.Helper()
	set("2", aiQuota(10))
	const small, large = "backend_name=default/openai,model_name_override=small", "backend_name=default/openai,model_name_override=large"
	eventually(t, "the quotas are in use", func() bool { return strings.Contains(send(small, 1), "10/HOUR") })
	for _, step := range []struct {
		descriptor string
		hits       int
		want       string
		why        string
	}{
		{large + ",rule-0-x-tenant-match-0=ann", 1, "OK", "the first request"},
		{large + ",rule-0-x-tenant-match-0=ann", 20, "OVER_LIMIT", "its tokens: more than the quota, and charged"},
		{large + ",rule-0-x-tenant-match-0=ann", 1, "OVER_LIMIT", "ann's next request"},
		{large + ",rule-0-x-tenant-match-0=bob", 1, "OK", "bob has a quota of his own"},
		{large + ",rule-1-match--1=rule-1-match--1", 1, "OK", "a request without a tenant"},
		{small, 20, "OVER_LIMIT", "the tokens of the request that found the quotas in use"},
		{small, 1, "OVER_LIMIT", "the next request for this model"},
		{"backend_name=default/other,model_name_override=small", 1, "OK", "a backend without a quota"},
	} {
		if got := send(step.descriptor, step.hits); !strings.HasPrefix(got, step.want+" |") {
			t.Errorf("%s: %s %d: %s, want %s", step.why, step.descriptor, step.hits, got, step.want)
		}
	}
	// An update of the policy applies to a tenant that has used up the old quota.
	set("3", aiQuota(100))
	eventually(t, "ann has units of the new quota left", func() bool { return strings.HasPrefix(send(large+",rule-0-x-tenant-match-0=ann", 0), "OK") })
}

// TestEnvoyGatewayDeployment runs the Deployment that Envoy Gateway renders, with rlsidecar as its program: the same
// environment, probes, certificates and control plane, at addresses and paths of the test. A real Envoy sends requests
// with the configuration that Envoy Gateway generates. The deployment of Envoy AI Gateway has a part of this environment.
func TestEnvoyGatewayDeployment(t *testing.T) {
	t.Parallel()
	tooltest.Path(t, "envoy") // skips the test if Envoy is missing
	data := read(t, kubernetes+"rendered/envoy-gateway-deployment.yaml")
	var c container
	if err := yaml.Unmarshal([]byte(data), &c); err != nil {
		t.Fatal(err)
	}
	r := readRendered(t, "envoy-gateway.yaml")
	ca := certtest.New(t)
	redis, addr, certs := redistest.Start(t), loopback(), t.TempDir()
	ca.Secret(t, certs, 1, "envoy-ratelimit", "envoy-ratelimit.envoy-gateway-system", "envoy-ratelimit.envoy-gateway-system.svc.cluster.local")
	port := redistest.FreePort(t) // of the control plane: its certificate is for 127.0.0.1 and its name
	here := strings.NewReplacer("/certs", certs, "envoy-gateway:18001", fmt.Sprint("127.0.0.1:", port), "redis.redis-system.svc.cluster.local:6379", redis.Addr, ":19001", addr+":19001")
	cmd := exec.Command(sidecartest.Program)
	cmd.Args = []string{"/bin/ratelimit"}                                                                         // the command of the container
	cmd.Env = []string{"GRPC_HOST=" + addr, "HOST=" + addr, "DEBUG_HOST=" + addr, "RLSIDECAR_BACKEND_TIMEOUT=1s"} // the default of 10 ms may be too short on a busy machine
	for _, e := range c.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+here.Replace(e.Value))
	}
	sidecar := startCommand(t, cmd)

	// This client sends no certificate, because the listener does not require one.
	conn, err := grpc.NewClient(addr+":8081", grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: ca.Pool(), ServerName: "envoy-ratelimit"})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	service, health := rls.NewRateLimitServiceClient(conn), healthpb.NewHealthClient(conn)
	domain, path := r.Limits["domain"].(string), "httproute/default/shop/rule/0/match/0/shop_example_com"
	sendTo := func(domain, descriptor string) string {
		t.Helper()
		answer, err := service.ShouldRateLimit(t.Context(), rlstest.Request(domain, descriptor), grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		return rlstest.Response(answer)
	}
	send := func(key string) string { t.Helper(); return sendTo(domain, path+"="+path+",rule-0-match-0="+key) }
	serving := func() healthpb.HealthCheckResponse_ServingStatus {
		t.Helper()
		h, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "ratelimit"})
		if err != nil {
			t.Fatal(err)
		}
		return h.Status
	}

	// Before the control plane starts, the sidecar answers by on_backend_failure and is not ready.
	if got := send("early"); got != "OVER_LIMIT | OVER_LIMIT left 0" {
		t.Errorf("without a configuration: got %s, want a denial", got)
	}
	for name, p := range map[string]probe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
		if p.passes(addr) {
			t.Errorf("without a configuration the %s probe succeeds, want a failure", name)
		}
	}
	if got := serving(); got != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("without a configuration: got %v, want NOT_SERVING", got)
	}

	// When the control plane starts, the sidecar becomes ready.
	folderOfPlane := t.TempDir()
	ca.Secret(t, folderOfPlane, 2, "envoy-gateway")
	pair, err := tls.LoadX509KeyPair(filepath.Join(folderOfPlane, "tls.crt"), filepath.Join(folderOfPlane, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	plane := xdstest.Start(t, fmt.Sprint("127.0.0.1:", port), grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	})))
	limits := &conf.RateLimitConfig{Name: domain, Domain: domain, Descriptors: egLimits(t, r.Limits["descriptors"].([]any))}
	plane.Set(t, "envoy-ratelimit", "1", limits)
	eventually(t, "it is ready", func() bool { return c.ReadinessProbe.passes(addr) })
	if !c.StartupProbe.passes(addr) || !c.LivenessProbe.passes(addr) || serving() != healthpb.HealthCheckResponse_SERVING {
		t.Error("the sidecar is ready, but a probe or a listener reports that it is not")
	}

	// Envoy connects with its certificate, to the service name that Envoy Gateway uses.
	s := newStack(t, "10000", "")
	s.addr, s.sidecar = addr, sidecar
	s.serveApplication(t)
	clientFolder := t.TempDir()
	ca.Secret(t, clientFolder, 3, "envoy")
	file := func(name string) object { return object{"filename": filepath.Join(clientFolder, name)} }
	r.Cluster["transport_socket"] = object{
		"name": "envoy.transport_sockets.tls",
		"typed_config": object{
			"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
			"common_tls_context": object{
				"tls_certificates":   []any{object{"certificate_chain": file("tls.crt"), "private_key": file("tls.key")}},
				"validation_context": object{"trusted_ca": file("ca.crt")},
			},
		},
	}
	s.runEnvoy(t, s.gatewayFile(t, r))
	var last answer
	sameMinute(t, func(attempt int) bool {
		codes := map[int]int{}
		for range 2 * perMinute {
			last = s.key(t, fmt.Sprint("alice", attempt))()
			codes[last.code]++
		}
		return codes[200] == perMinute && codes[429] == perMinute
	})
	if last.header.Get("x-ratelimit-limit") == "" || last.header.Get("x-envoy-ratelimited") != "" {
		t.Errorf("got %v; want the header x-ratelimit-limit, and not x-envoy-ratelimited", last.header)
	}
	if n := strings.Count(redis.Do("keys", "*"), "alice"); n == 0 {
		t.Error("Redis has no bucket")
	}

	// The metrics have the names and labels that Envoy Gateway's dashboard reads.
	_, page := fetch("http://" + addr + ":19001/metrics")
	for _, name := range []string{
		"rate_limit_total_hits", "rate_limit_over_limit", "rate_limit_near_limit", "rate_limit_within_limit", "rate_limit_shadow_mode",
		"should_rate_limit_error", "total_requests", "response_time_seconds_count", "config_load_success", "config_load_error",
	} {
		if !strings.Contains(page, "\nratelimit_service_"+name) {
			t.Errorf("no %s", name)
		}
	}
	if want := fmt.Sprintf(`domain="%s",key1="%s_%s",key2="rule-0-match-0"`, domain, path, path); !strings.Contains(page, want) {
		t.Errorf("no series with %s", want)
	}

	aiQuotas(t, func(descriptor string, hits int) string {
		return sendTo("ai-gateway-quota", fmt.Sprintf("%s;hits=%d", descriptor, hits))
	}, func(version string, quotas *conf.RateLimitConfig) {
		plane.Set(t, "envoy-ratelimit", version, limits, quotas)
	})
}
