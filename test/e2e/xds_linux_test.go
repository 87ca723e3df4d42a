package e2e

import (
	"net/http"
	"strings"
	"testing"
)

// TestXDSExample follows examples/xds/README.md, on a loopback address that no other test uses.
func TestXDSExample(t *testing.T) {
	t.Parallel()
	program, addr := build(t, "examples/xds"), loopback()
	plane := start(t, program, "-listen", addr+":18001")
	serve(t, addr, "RLSIDECAR_XDS_BACKOFF=10ms", "RLSIDECAR_XDS_MAX_BACKOFF=100ms", "RLSIDECAR_ADMIN_TOKEN=t",
		"--xds-server", addr+":18001", "--xds-node-id", "edge", "--metrics-listen", addr+":9090")
	send := func(key string) (code int) {
		code, _ = post("http://"+addr+":8080/json", `{"domain": "edge", "descriptors": [{"entries": [{"key": "api_key", "value": "`+key+`"}]}]}`)
		return code
	}
	r := &reference{addr: addr}
	// All steps must happen in one minute. A second attempt uses another key, and only checks the last limit.
	sameMinute(t, func(attempt int) bool {
		key := "bob" + strings.Repeat("b", attempt)
		count := func(n int) (allowed int) {
			for range n {
				if send(key) == http.StatusOK {
					allowed++
				}
			}
			return allowed
		}
		if attempt > 0 { // the previous attempt ended with a limit of 10 a minute
			return count(12) == 10
		}
		first := count(6)
		plane.kill()
		while := count(1)
		plane = start(t, program, "-listen", addr+":18001", "-per-minute", "10", "-version", "2")
		eventually(t, "the second version is in use", func() bool { return r.metric("ratelimit_service_config_load_success") == "2" })
		after := count(4)
		if first != 5 || while != 0 || after != 3 {
			t.Logf("%d, %d and %d requests are allowed, want 5, 0 and 3", first, while, after)
			return false
		}
		return true
	})
}
