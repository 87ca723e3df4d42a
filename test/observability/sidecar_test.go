package observability

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/rlsidecar/rlsidecar/internal/testkit/sidecartest"
)

const (
	root     = "../.."
	examples = root + "/examples/observability"
	patience = time.Minute // bounds every wait for another process; a test that passes does not wait that long
)

func TestMain(m *testing.M) { sidecartest.Main(m, root) }

type sidecar struct {
	*sidecartest.Sidecar
	config string // the path of the configuration file
}

// startSidecar starts a sidecar with this configuration, and waits until it answers.
func startSidecar(t *testing.T, config string, args ...string) *sidecar {
	t.Helper()
	s := &sidecar{config: filepath.Join(t.TempDir(), "limits.yaml")}
	s.write(t, config)
	if config != "" {
		args = append(args, "--config", s.config)
	}
	s.Sidecar = sidecartest.Start(t, args...).Await("/livez")
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
	response, err := http.Post("http://"+s.HTTP+path, "application/json", strings.NewReader(body))
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
	return scrape(t, s.Admin)
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
