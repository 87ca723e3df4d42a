package redis

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// A duration equal to the timeout is too long. The proposed timeout is twice the 99th percentile, rounded up to whole
// milliseconds.
func TestLatencyIsComparedWithTheTimeout(t *testing.T) {
	times := func(usual, slowest time.Duration) []time.Duration {
		return append(slices.Repeat([]time.Duration{usual}, 48), slowest, slowest)
	}
	for name, c := range map[string]struct {
		took     []time.Duration
		severity Severity
		want     string
	}{
		"near":              {times(ms/5, ms), Fine, "the median took 200µs and 99 % at most 1ms; --backend-timeout is 10ms"},
		"slow at times":     {times(4*ms, 12*ms), Warning, "some requests are answered by on_backend_failure; set --backend-timeout to 24ms (RLSIDECAR_BACKEND_TIMEOUT), and the proxy's timeout for the rate limit service to at least 34ms"},
		"far":               {times(21700*time.Microsecond, 22*ms), Problem, "most requests are answered by on_backend_failure; set --backend-timeout to 44ms"},
		"not to be found":   {nil, Warning, "could not be measured"},
		"as the timeout":    {[]time.Duration{10 * ms}, Problem, "set --backend-timeout to 20ms"},
		"of three":          {[]time.Duration{ms, ms, 10*ms + 1}, Fine, "the median took 1ms and 99 % at most 1ms"}, // the index of the percentile is rounded down
		"above the timeout": {[]time.Duration{10*ms + 1}, Problem, "set --backend-timeout to 21ms"},
	} {
		if severity, text := judgeLatency(c.took, 10*ms); severity != c.severity || !strings.Contains(text, c.want) {
			t.Errorf("%s: %s: %s; want %s: %s", name, severity, text, c.severity, c.want)
		}
	}
}

func TestDoctorMeasuresAFarRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	far := startProxy(t, server.Addr, 1)
	far.do(faults{share: 1, late: 30 * time.Millisecond})
	s := open(t, Config{URL: "redis://" + far.Addr, Timeout: time.Second})
	if got := findingsOf(s.Examine(t.Context(), 10*time.Millisecond), "latency"); !strings.HasPrefix(got, "problem: ") || !strings.Contains(got, "set --backend-timeout to ") {
		t.Errorf("a timeout of 10 ms: %s; want a text that starts with %q and contains %q", got, "problem: ", "set --backend-timeout to ")
	}
	if got := findingsOf(s.Examine(t.Context(), time.Minute), "latency"); !strings.HasPrefix(got, "ok: ") {
		t.Errorf("a timeout of a minute: %s; want a text that starts with %q", got, "ok: ")
	}
}
