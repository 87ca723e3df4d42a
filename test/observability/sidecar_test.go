package observability

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

const (
	root     = "../.."
	examples = root + "/examples/observability"
	patience = time.Minute // bounds every wait for another process; a test that passes does not wait that long
)

// buildDir is the folder of the program, which all tests share.
var buildDir string

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "observability"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(buildDir)
	os.Exit(code)
}

var build = sync.OnceValues(func() (string, error) {
	program := filepath.Join(buildDir, "rlsidecar")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", program, "./cmd/rlsidecar")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build rlsidecar: %w\n%s", err, out)
	}
	return program, nil
})

func rlsidecar(t *testing.T) string {
	t.Helper()
	program, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

type sidecar struct {
	config            string // the path of the configuration file
	grpc, http, admin string // host:port
	cmd               *exec.Cmd
}

// startSidecar starts a sidecar with this configuration, and waits until it answers.
func startSidecar(t *testing.T, config string, args ...string) *sidecar {
	t.Helper()
	address := func() string { return fmt.Sprint("127.0.0.1:", redistest.FreePort(t)) }
	s := &sidecar{config: filepath.Join(t.TempDir(), "limits.yaml"), grpc: address(), http: address(), admin: address()}
	s.write(t, config)
	all := []string{"serve", "--grpc-listen", s.grpc, "--http-listen", s.http, "--admin-listen", s.admin, "--drain-delay", "0s"}
	if config != "" {
		all = append(all, "--config", s.config)
	}
	var output bytes.Buffer
	s.cmd = exec.Command(rlsidecar(t), append(all, args...)...)
	s.cmd.Stdout, s.cmd.Stderr = &output, &output
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		if t.Failed() {
			t.Logf("rlsidecar %s:\n%s", strings.Join(args, " "), output.String())
		}
	})
	redistest.Eventually(t, "rlsidecar is alive", func() bool {
		response, err := http.Get("http://" + s.http + "/livez")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return s
}

func (s *sidecar) write(t *testing.T, config string) {
	t.Helper()
	if err := os.WriteFile(s.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
}

// send sends n requests of a domain with the descriptor key=value. It inserts all three into the JSON text as
// they are, so a value can contain more entries.
func (s *sidecar) send(t *testing.T, n int, domain, key, value string) {
	t.Helper()
	for range n {
		s.post(t, "/json", `{"domain":"`+domain+`","descriptors":[{"entries":[{"key":"`+key+`","value":"`+value+`"}]}]}`)
	}
}

// post returns the body of the answer.
func (s *sidecar) post(t *testing.T, path, body string) string {
	t.Helper()
	response, err := http.Post("http://"+s.http+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

type sample struct {
	labels  model.Metric // the name, the labels, and the labels that Prometheus adds: job, instance, namespace
	value   float64
	counter bool
}

func (s *sidecar) scrape(t *testing.T) map[string]sample {
	t.Helper()
	return scrape(t, s.admin)
}

func scrape(t *testing.T, address string) map[string]sample {
	t.Helper()
	response, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]sample{}
	for _, family := range families {
		kind := family.GetType().String()
		vector, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, family)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range vector {
			v.Metric["job"], v.Metric["instance"], v.Metric["namespace"] = "rlsidecar", "10.0.0.1:9090", "edge"
			found[v.Metric.String()] = sample{v.Metric, float64(v.Value), kind != "GAUGE"}
		}
	}
	return found
}
