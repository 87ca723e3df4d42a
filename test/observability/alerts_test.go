package observability

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(tooltest.Path(t, "promtool"), args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestRulesPassTheirTests(t *testing.T) {
	promtool(t, "check", "rules", examples+"/rules.yaml")
	promtool(t, "test", "rules", examples+"/rules_test.yaml", examples+"/rules_day_test.yaml")
	text, err := os.ReadFile(examples + "/rules_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, alert := range alerts(t) {
		if !bytes.Contains(text, []byte(`alertname="`+alert.Alert+`"`)) {
			t.Errorf("rules_test.yaml does not test %s", alert.Alert)
		}
	}
}

// Each point of a timeline is one minute. The timeline repeats a recording: in each minute, a counter rises by its
// increase during the recording.
const (
	healthyPoints = 40
	badPoints     = 30
)

// TestAlertsFireOnRecordings plays 40 minutes without a problem, when no alert may fire, and then 30 minutes
// with a problem.
func TestAlertsFireOnRecordings(t *testing.T) {
	all := recordings(t)
	cases := []struct {
		name  string
		early string // the alerts that fire 5 minutes after the problem began
		late  string // the alerts that fire 30 minutes after the problem began
	}{
		{"healthy", "", ""},
		{"attack on one key", "RlsidecarManyDenied", "RlsidecarLimitDeniesMost RlsidecarManyDenied"},
		{"a limit that is too low", "RlsidecarManyDenied", "RlsidecarLimitDeniesMost RlsidecarManyDenied"},
		{"Redis paused", "RlsidecarStoreBreakerOpen RlsidecarStoreFailing", "RlsidecarStoreBreakerOpen RlsidecarStoreErrors RlsidecarStoreFailing"},
		{"Redis is slow", "RlsidecarAnswersLate", "RlsidecarAnswersLate RlsidecarStoreSlow"},
		{"Redis that may evict", "", "RlsidecarStoreUnfit"},
		{"a wrong Redis password", "RlsidecarStoreRefused", "RlsidecarStoreRefused"},
		{"a bad reload", "RlsidecarConfigRefused", "RlsidecarConfigRefused"},
		{"a typo in the domain", "", "RlsidecarDomainUnknown"},
		{"a typo in a descriptor key", "", "RlsidecarRequestsUnmatched"},
		{"requests without a domain", "", "RlsidecarRequestsRefused"},
		{"memory full", "RlsidecarMemoryFull", "RlsidecarMemoryFull RlsidecarMemoryNearlyFull"},
		{"no connection left", "RlsidecarConnectionsRefused", "RlsidecarConnectionsNearlyFull RlsidecarConnectionsRefused"},
		{"proxies that do not know the costs", "", "RlsidecarRealCostsUnknown"},
		{"no control plane", "", "RlsidecarControlPlaneAway"},
	}
	used := map[string]bool{} // the metrics that the rules use; promtool is slow with many series
	for _, r := range rules(t) {
		for _, matchers := range selectors(t, r.Expr) {
			for _, m := range matchers {
				used[m.Value] = used[m.Value] || m.Name == "__name__"
			}
		}
	}
	var file bytes.Buffer
	path, err := filepath.Abs(examples + "/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&file, "rule_files: [%q]\nevaluation_interval: 1m\ntests:\n", path)
	for _, c := range cases {
		bad, ok := all[c.name]
		if !ok {
			t.Fatalf("%s is not recorded", c.name)
		}
		good := all["healthy"]
		if !slices.ContainsFunc(slices.Collect(maps.Keys(bad.after)), func(s string) bool { return strings.HasPrefix(s, "rlsidecar_backend_seconds") }) {
			good = recording{} // another sidecar recorded the problem, so its series start here
		}
		writeTimeline(&file, c.name, good, bad, used)
		fmt.Fprintf(&file, "  promql_expr_test:\n")
		writeFiring(&file, healthyPoints, "")
		writeFiring(&file, healthyPoints+5, c.early)
		writeFiring(&file, healthyPoints+badPoints, c.late)
	}
	path = filepath.Join(t.TempDir(), "recorded.yaml")
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "test", "rules", path)
}

// writeTimeline writes the series of a promtool test: healthyPoints points with good, then badPoints with bad.
func writeTimeline(file *bytes.Buffer, name string, good, bad recording, used map[string]bool) {
	fmt.Fprintf(file, "- name: %q\n  interval: 1m\n  input_series:\n", name)
	fmt.Fprintf(file, "  - series: 'up{instance=\"10.0.0.1:9090\", job=\"rlsidecar\", namespace=\"edge\"}'\n    values: '1x%d'\n", healthyPoints+badPoints)
	names := map[string]sample{}
	maps.Copy(names, good.after)
	maps.Copy(names, bad.after)
	for _, series := range slices.Sorted(maps.Keys(names)) {
		if !used[string(names[series].labels["__name__"])] {
			continue
		}
		fmt.Fprintf(file, "  - series: '%s'\n    values: '", series)
		value, known := good.before[series].value, false
		for i := range healthyPoints + badPoints {
			r := good
			if i >= healthyPoints {
				r = bad
			}
			if before, exists := r.before[series]; exists {
				known = true
				if before.counter {
					value += r.after[series].value - before.value
				} else {
					value = r.after[series].value
				}
			} else if after, exists := r.after[series]; exists {
				known = true
				value += after.value
				if !after.counter {
					value = after.value
				}
			}
			if known {
				file.WriteString(strconv.FormatFloat(value, 'f', -1, 64) + " ")
			} else {
				file.WriteString("_ ")
			}
		}
		file.WriteString("'\n")
	}
}

// writeFiring writes the expectation that exactly these alerts fire at a point. It ignores the alert about
// late answers unless it is expected, because that depends on the load of this machine.
func writeFiring(file *bytes.Buffer, point int, alerts string) {
	ignored := ", alertname!=\"RlsidecarAnswersLate\""
	if strings.Contains(alerts, "RlsidecarAnswersLate") {
		ignored = ""
	}
	fmt.Fprintf(file, "  - expr: count by (alertname) (ALERTS{alertstate=\"firing\"%s})\n    eval_time: %dm\n    exp_samples:", ignored, point-1)
	for _, alert := range strings.Fields(alerts) {
		fmt.Fprintf(file, "\n    - {labels: '{alertname=%q}', value: %d}", alert, 1)
	}
	if alerts == "" {
		file.WriteString(" []")
	}
	file.WriteString("\n")
}
