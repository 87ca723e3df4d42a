package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/certtest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

const shouldRateLimit = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

const clientsLimits = `
domain: clients
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1000000}}
  - {key: once, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: thousand, rate_limit: {unit: day, requests_per_unit: 1000}}
  - {key: held, rate_limit: {algorithm: leaky_bucket, rate: 1, period: 1s, capacity: 5, max_delay: 10s}}
`

type request struct {
	*testing.T
	addr   string
	socket string // the Unix socket; empty means TCP
	ca     string // the file of the CA; empty means no TLS
}

func eachListener(t *testing.T, test func(request)) {
	t.Helper()
	for _, kind := range []string{"tcp", "unix", "tls"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			config := fileOf(t, "limits.yaml", clientsLimits)
			a := request{T: t, addr: loopback() + ":8081"}
			listen := a.addr
			args := []string{"RLSIDECAR_MAX_DESCRIPTORS=1000", "--config", config, "--http-listen", "", "--admin-listen", ""}
			switch kind {
			case "unix":
				a.socket = filepath.Join(dir, "s")
				listen = "unix://" + a.socket
			case "tls":
				certtest.New(t).Secret(t, dir, 2, "sidecar")
				a.ca = dir + "/ca.crt"
				args = append(args, "--tls-cert", dir+"/tls.crt", "--tls-key", dir+"/tls.key")
			}
			serve(t, "", append(args, "--grpc-listen", listen)...)
			test(a)
		})
	}
}

func run(t *testing.T, program string, args ...string) (output string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %q: %v", program, args, err)
	}
	return string(out)
}

func TestPythonGRPC(t *testing.T) {
	t.Parallel()
	python := tooltest.Path(t, "python-grpcio")
	const want = `once: OK OVER_LIMIT
1500 at once: 1000 OK, 500 OVER_LIMIT
gzip: OK
deflate: UNIMPLEMENTED: the message is compressed; the only supported grpc-encoding is gzip
long metadata: OK
an answer of more than a frame: True
held: OK OK
held longer than its deadline: OK OVER_LIMIT
not a message: INTERNAL: grpc: failed to unmarshal the received message: cannot parse RateLimitRequest
no domain: UNKNOWN: rate limit domain must not be empty
empty: UNKNOWN: rate limit domain must not be empty
no such method: UNIMPLEMENTED: unknown method Nonsense for service envoy.service.ratelimit.v3.RateLimitService
health: b'\x08\x01'
watched health: b'\x08\x01'
reflection: True
still: OK
connections: 1
`
	eachListener(t, func(t request) {
		args := []string{"testdata/client.py", t.addr}
		if t.socket != "" {
			args[1] = "unix:" + t.socket
		}
		if t.ca != "" {
			args = append(args, t.ca)
		}
		if output := run(t.T, python, args...); output != want {
			t.Errorf("the client printed\n%swant\n%s", output, want)
		}
	})
}

// TestH2spec runs the tests of h2spec, several times, because a single success may be chance.
func TestH2spec(t *testing.T) {
	t.Parallel()
	h2spec := tooltest.Path(t, "h2spec")
	eachListener(t, func(t request) {
		if t.socket != "" {
			t.Skip("h2spec does not test this listener")
		}
		host, port, _ := strings.Cut(t.addr, ":")
		args := []string{"--strict", "--host", host, "--port", port, "--path", shouldRateLimit, "--timeout", "10"}
		if t.ca != "" {
			args = append(args, "--tls", "--insecure")
		}
		for range 2 {
			if output := run(t.T, h2spec, args...); !strings.Contains(output, "146 tests, 146 passed, 0 skipped, 0 failed") {
				_, failures, _ := strings.Cut(output, "Failures:")
				t.Errorf("got %s; want 146 tests passed", failures)
			}
		}
	})
}
