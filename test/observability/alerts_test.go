package observability

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
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

// TestAlertsFireOnRecordings checks which alerts would fire while a recording is repeated. rules_test.yaml tests how long
// each alert waits.
func TestAlertsFireOnRecordings(t *testing.T) {
	all := recordings(t)
	for name, want := range map[string]string{
		"healthy":                            "",
		"attack on one key":                  "RlsidecarLimitDeniesMost RlsidecarManyDenied",
		"Redis paused":                       "RlsidecarStoreBreakerOpen RlsidecarStoreErrors RlsidecarStoreFailing",
		"Redis is slow":                      "RlsidecarAnswersLate RlsidecarStoreSlow",
		"Redis that may evict":               "RlsidecarStoreUnfit",
		"a wrong Redis password":             "RlsidecarStoreRefused",
		"a bad reload":                       "RlsidecarConfigRefused",
		"a typo in the domain":               "RlsidecarDomainUnknown",
		"a typo in a descriptor key":         "RlsidecarRequestsUnmatched",
		"requests without a domain":          "RlsidecarRequestsRefused",
		"memory full":                        "RlsidecarMemoryFull RlsidecarMemoryNearlyFull",
		"no connection left":                 "RlsidecarConnectionsNearlyFull RlsidecarConnectionsRefused",
		"proxies that do not know the costs": "RlsidecarRealCostsUnknown",
		"no control plane":                   "RlsidecarControlPlaneAway",
	} {
		if len(all[name].after) == 0 {
			t.Fatalf("%s is not recorded", name)
		}
		db := newDatabase(t, all[name])
		var firing []string
		for _, alert := range alerts(t) {
			if alert.Alert == "RlsidecarAnswersLate" && !strings.Contains(want, alert.Alert) {
				continue // depends on the load of this machine
			}
			if len(db.evaluate(t, alert.Expr)) > 0 {
				firing = append(firing, alert.Alert)
			}
		}
		slices.Sort(firing)
		if got := strings.Join(firing, " "); got != want {
			t.Errorf("%s: the alerts %q fire, want %q", name, got, want)
		}
	}
}
