package server

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// About 4,000 different keys are sent to each of three limits. The first limit allows them, the second denies them,
// and the buckets of the third fill the memory. No key adds a metrics series, and the memory for keys is bounded.
func TestKeysMakeNoSeries(t *testing.T) {
	const room = 2000
	x := start(t, `
domain: d
consume: each
descriptors:
  - {key: allowed, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: denied, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: lasting, rate_limit: {algorithm: token_bucket, rate: 1, period: 1d, capacity: 1}}
`, func(c *Config) { c.MemoryMaxKeys = room })
	sent := 0
	send := func(until int) {
		t.Helper()
		for sent < until {
			r := request("d")
			for range 30 {
				for _, key := range []string{"allowed", "denied", "lasting"} {
					r.Descriptors = append(r.Descriptors, descriptor(fmt.Sprintf("%s=made-up-%d", key, sent)))
				}
				sent++
			}
			x.put(t, r)
		}
	}
	send(room + 30) // from here on the memory is full
	before := seriesOf(body(t, get(t, x.Admin, "/metrics")))
	top := len(body(t, get(t, x.Admin, "/api/top")))
	send(4020)
	metrics := body(t, get(t, x.Admin, "/metrics"))
	for name := range seriesOf(metrics) {
		if !before[name] {
			t.Errorf("more keys added the series %s; want none added", name)
		}
	}
	if keys := regexp.MustCompile(`(?m)^rlsidecar_memory_keys (\S+)$`).FindStringSubmatch(metrics); keys == nil {
		t.Error("the metrics lack rlsidecar_memory_keys; want it")
	} else if n, err := strconv.ParseFloat(keys[1], 64); err != nil || n > room {
		t.Errorf("%s buckets in memory (%v), want at most %d", keys[1], err, room)
	}
	if strings.Contains(metrics, "made-up") {
		t.Error("/metrics contains a client's key; want none")
	}
	for _, path := range []string{"/api/top", "/"} {
		const most = 100 << 10
		if n := len(body(t, get(t, x.Admin, path))); n > most {
			t.Errorf("%s has %d bytes for %d keys, %d before the last ones; want at most %v", path, n, 3*sent, top, most)
		}
	}
}

func seriesOf(text string) map[string]bool {
	series := map[string]bool{}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			series[line[:strings.LastIndexByte(line, ' ')]] = true
		}
	}
	return series
}
