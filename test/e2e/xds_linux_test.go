package e2e

import (
	"net/http"
	"testing"
)

// TestXDSExample follows examples/xds/README.md, on a loopback address that no other test uses. TestControlPlaneSetsLimits
// and TestLimitsOutliveTheControlPlane in internal/server test the limits themselves.
func TestXDSExample(t *testing.T) {
	t.Parallel()
	program, addr := build(t, "examples/xds"), loopback()
	plane := start(t, program, "-listen", addr+":18001")
	serve(t, addr, "RLSIDECAR_XDS_BACKOFF=10ms", "RLSIDECAR_XDS_MAX_BACKOFF=100ms", "--xds-server", addr+":18001", "--xds-node-id", "edge")
	send := func(when, key string, want int) {
		t.Helper()
		body := `{"domain": "edge", "descriptors": [{"entries": [{"key": "api_key", "value": "` + key + `"}], "hits_addend": 6}]}`
		if code, answer := post("http://"+addr+":8080/json", body); code != want {
			t.Errorf("6 hits %s: got %d %s; want status %d", when, code, answer, want)
		}
	}
	send("with 5 a minute", "bob", http.StatusTooManyRequests)
	plane.kill()
	send("without the control plane", "bob", http.StatusTooManyRequests)
	start(t, program, "-listen", addr+":18001", "-per-minute", "10", "-version", "2")
	eventually(t, "the second version is in use", func() bool {
		return metric(addr, `rlsidecar_config_reloads_total{result="success"} `) == 2
	})
	send("with 10 a minute", "eve", http.StatusOK)
}
