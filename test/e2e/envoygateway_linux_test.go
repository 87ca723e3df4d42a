package e2e

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	conf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/rlsidecar/rlsidecar/internal/testkit/certtest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/rlstest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/xdstest"
)

// networkOfItsOwn is set in a process that inOwnNetwork has started.
const networkOfItsOwn = "RLSIDECAR_E2E_NETWORK"

// inOwnNetwork starts this test again in a child process with a network of its own, where the test can use the
// ports and names of a pod. It returns true in the child process. In the parent process it waits for the child,
// and returns false.
func inOwnNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv(networkOfItsOwn) != "" {
		if out, err := exec.Command(tooltest.Path(t, "ip"), "link", "set", "lo", "up").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), networkOfItsOwn+"=yes")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWNET}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	switch {
	case cmd.Process == nil:
		tooltest.Impossible(t, fmt.Sprintf("this machine does not allow a separate network: %v", err))
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("%s", out)
	}
	return false
}

// container is the container in examples/kubernetes/rendered/envoy-gateway-deployment.yaml.
type container struct {
	Name, Image string
	Command     []string
	Env         []struct{ Name, Value string }
	Ports       []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
		Protocol      string
	}
	StartupProbe   probe `yaml:"startupProbe"`
	ReadinessProbe probe `yaml:"readinessProbe"`
	LivenessProbe  probe `yaml:"livenessProbe"`
	VolumeMounts   []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

type probe struct {
	HTTPGet struct {
		Path, Scheme string
		Port         int
	} `yaml:"httpGet"`
	TimeoutSeconds   int `yaml:"timeoutSeconds"`
	PeriodSeconds    int `yaml:"periodSeconds"`
	FailureThreshold int `yaml:"failureThreshold"`
}

func (p probe) passes(t *testing.T) bool {
	t.Helper()
	client := &http.Client{Timeout: time.Duration(p.TimeoutSeconds) * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(fmt.Sprintf("%s://127.0.0.1:%d%s", strings.ToLower(p.HTTPGet.Scheme), p.HTTPGet.Port, p.HTTPGet.Path))
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode == http.StatusOK && string(body) != "OK" {
		t.Errorf("%s: got the body %q, want OK", p.HTTPGet.Path, body)
	}
	return resp.StatusCode >= 200 && resp.StatusCode < 400
}

// names are the host names that resolve inside the pod.
const names = "127.0.0.1 localhost envoy-gateway redis.redis-system.svc.cluster.local\n"

func pod(t *testing.T, c container, ca *certtest.Authority) (folder string) {
	t.Helper()
	folder = t.TempDir()
	for _, name := range []string{"bin", "etc"} {
		if err := os.MkdirAll(filepath.Join(folder, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(sidecarProgram)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "bin/ratelimit"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "etc/hosts"), []byte(names), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, m := range c.VolumeMounts {
		at := filepath.Join(folder, m.MountPath)
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if m.Name == "certs" {
			ca.Secret(t, at, 1, "envoy-ratelimit", "envoy-ratelimit.envoy-gateway-system", "envoy-ratelimit.envoy-gateway-system.svc.cluster.local")
		}
	}
	// The container's user must be able to read the folders above, which t.TempDir creates for the test's user only.
	for at := folder; at != os.TempDir() && at != "/"; at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// startPod starts c with its command, its environment and a longer timeout for Redis. The process sees only
// the files of the pod. It runs as the user of the image, unless the test has only one user id.
func startPod(t *testing.T, c container, folder string) *process {
	t.Helper()
	// exec.Command would search for the program outside of the pod.
	cmd := &exec.Cmd{Path: c.Command[0], Args: c.Command, Dir: "/", Env: []string{
		"PATH=/bin", "HOSTNAME=envoy-ratelimit-0",
		"RLSIDECAR_BACKEND_TIMEOUT=1s", // the default of 10 ms may be too short on a busy machine
	}}
	for _, e := range c.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: folder}
	if uids, err := os.ReadFile("/proc/self/uid_map"); err == nil && strings.Fields(string(uids))[2] != "1" {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	return startCommand(t, cmd)
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

// TestEnvoyGatewayDeployment runs the Deployment that Envoy Gateway renders, with rlsidecar as its program:
// the same environment, ports, probes, certificates and control plane. A real Envoy sends requests with the
// configuration that Envoy Gateway generates.
func TestEnvoyGatewayDeployment(t *testing.T) {
	t.Parallel()
	tooltest.Path(t, "envoy") // skips the test if Envoy is missing
	if !inOwnNetwork(t) {
		return
	}
	data, err := os.ReadFile(kubernetes + "rendered/envoy-gateway-deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c container
	decoder := yaml.NewDecoder(strings.NewReader(string(data)))
	decoder.KnownFields(true)
	if err := decoder.Decode(&c); err != nil {
		t.Fatal(err)
	}
	r := readRendered[rendered](t, "envoy-gateway.yaml")
	ca := certtest.New(t)
	folder := pod(t, c, ca)
	redis := redistest.StartAt(t, 6379)
	sidecar := startPod(t, c, folder)

	// This client sends no certificate, because the listener does not require one.
	conn, err := grpc.NewClient("127.0.0.1:8081", grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: ca.Pool()})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	service, health := rls.NewRateLimitServiceClient(conn), healthpb.NewHealthClient(conn)
	domain, path := r.Limits["domain"].(string), "httproute/default/shop/rule/0/match/0/shop_example_com"
	send := func(key string) string {
		t.Helper()
		answer, err := service.ShouldRateLimit(t.Context(), rlstest.Request(domain, rlstest.Descriptor(path+"="+path+",rule-0-match-0="+key)), grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		return rlstest.Response(answer)
	}
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
		if p.passes(t) {
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
	plane := xdstest.Start(t, "127.0.0.1:18001", grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	})))
	limits := &conf.RateLimitConfig{Name: domain, Domain: domain, Descriptors: egLimits(t, r.Limits["descriptors"].([]any))}
	plane.Set(t, "envoy-ratelimit", "1", limits)
	eventually(t, "it is ready", func() bool { return c.ReadinessProbe.passes(t) })
	if !c.StartupProbe.passes(t) || !c.LivenessProbe.passes(t) || serving() != healthpb.HealthCheckResponse_SERVING {
		t.Error("the sidecar is ready, but a probe or a listener reports that it is not")
	}

	// Envoy connects with its certificate, to the service name that Envoy Gateway uses.
	s := newStack(t, "10000", "")
	s.addr, s.sidecar = "127.0.0.1", sidecar
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
	_, page := fetch("http://127.0.0.1:19001/metrics")
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

	// After the control plane has stopped, its last limits stay in force, and no probe fails.
	plane.Stop()
	eventually(t, "the stream is gone", func() bool {
		_, page := fetch("http://127.0.0.1:19001/metrics")
		return strings.Contains(page, "\nrlsidecar_xds_connected 0")
	})
	if got := send("bob"); !strings.HasPrefix(got, "OK | OK left 4 of 5/MINUTE") {
		t.Errorf("while its control plane is unreachable: got %s, want the last limit of 5/MINUTE", got)
	}
	if !c.LivenessProbe.passes(t) || !c.ReadinessProbe.passes(t) {
		t.Error("a probe fails while the control plane is unreachable")
	}

	// The open ports are those of the Deployment, and SIGTERM ends the pod.
	for _, p := range c.Ports {
		awaitPort(t, sidecar, "tcp", fmt.Sprintf("127.0.0.1:%d", p.ContainerPort))
	}
	if err := sidecar.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "readiness fails before the end", func() bool { return !c.ReadinessProbe.passes(t) })
	select {
	case <-sidecar.exited:
	case <-time.After(maxWait):
		t.Error("the process does not end")
	}
}
