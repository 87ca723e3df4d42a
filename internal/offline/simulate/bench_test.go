package simulate

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// BenchmarkReplay measures lines per second for a trace with 10,000 users and as many addresses, and for an access log,
// with and without decisions.
func BenchmarkReplay(b *testing.B) {
	s := compiled(b, `
domain: edge
limits: {send: {algorithm: token_bucket, rate: 10, period: 1m, capacity: 20}}
descriptors:
  - {key: user, limit: send}
  - key: path
    value: /login
    descriptors: [{key: address, rate_limit: {algorithm: sliding_window, rate: 3, period: 30s}}]
`)
	templates, err := ParseTemplates(Nginx, []string{"path=%U,address=%h"})
	if err != nil {
		b.Fatal(err)
	}
	const lines = 100_000
	jsonl, log := traceOf(lines), logOf(lines)
	for _, bench := range []struct {
		name      string
		format    Format
		input     string
		decisions io.Writer
	}{
		{"jsonl", JSONL, jsonl, nil},
		{"jsonl with decisions", JSONL, jsonl, io.Discard},
		{"nginx", Nginx, log, nil},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, err := Run(b.Context(), Config{
					Snapshot: s, Name: "trace", Input: strings.NewReader(bench.input), Format: bench.format,
					Templates: templates, Domain: "edge", Decisions: bench.decisions,
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(lines)*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
		})
	}
}

func traceOf(lines int) string {
	random := rand.New(rand.NewPCG(1, 2))
	var out strings.Builder
	for i := range lines {
		entries := fmt.Sprintf(`["user","user-%d"]`, random.IntN(10_000))
		if i%3 == 0 {
			entries = fmt.Sprintf(`["path","/login"],["address","192.0.2.%d"]`, random.IntN(10_000))
		}
		fmt.Fprintf(&out, `{"time_us": %d, "domain": "edge", "descriptors": [{"entries": [%s], "hits": 1}]}`+"\n", int64(1_767_225_600_000_000)+int64(i)*1000, entries)
	}
	return out.String()
}

func logOf(lines int) string {
	random := rand.New(rand.NewPCG(1, 2))
	var out strings.Builder
	for i := range lines {
		fmt.Fprintf(&out, `192.0.2.%d - - [01/Jan/2026:00:%02d:%02d +0000] "GET /login?x=%d HTTP/1.1" 200 512 "-" "curl/8.0"`+"\n",
			random.IntN(10_000), i*60/lines, i*3600/lines%60, i)
	}
	return out.String()
}
