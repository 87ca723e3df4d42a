package reservation

import (
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/estimate"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// BenchmarkSettle compares a plain decision in memory with a reservation, its id, and its settlement, as a
// proxy requests them. It does not include gRPC.
func BenchmarkSettle(b *testing.B) {
	now := func() algorithms.Micros { return algorithms.Micros(time.Now().UnixMicro()) }
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{IDs: keysOf("secret"), Now: now, Estimates: &estimate.Estimates{}})
	snapshot, problems := config.Compile([]config.File{{Name: "limits.yaml", Data: []byte(`
domain: ai
limits:
  plain: {algorithm: token_bucket, rate: 10000000, period: 1s}
  tokens: {algorithm: token_bucket, rate: 10000000, period: 1s, settle: {estimate: {learn: p90, first: 3}, ttl: 1s}}
descriptors:
  - {key: plain, limit: plain}
  - {key: user, limit: tokens}
`)}}, config.Options{})
	if problems.Bad() {
		b.Fatal(problems)
	}
	l.Swap(snapshot)
	c := &limiter.Call{}
	send := func(n int, hits int64, entries [2]descriptors.Entry) {
		c.Reset()
		c.Request.Domain = "ai"
		for i := range n {
			d := c.AddDescriptor()
			d.Entries, d.Cost, d.Explicit = append(d.Entries, entries[i]), hits, hits != 1
			if i == 1 {
				d.Cost = 0
			}
		}
		if err := l.Check(b.Context(), c); err != nil || c.Denied {
			b.Fatal(err, c.Denied)
		}
	}
	b.Run("plain", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			send(1, 1, [2]descriptors.Entry{{Key: "plain", Value: "bob"}})
		}
	})
	var id []byte
	b.Run("start", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			send(1, 1, [2]descriptors.Entry{{Key: "user", Value: "bob"}})
			id = c.AppendID(id[:0])
		}
	})
	b.Run("start and done", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			send(1, 1, [2]descriptors.Entry{{Key: "user", Value: "bob"}})
			id = c.AppendID(id[:0])
			text := string(id)
			send(2, 2, [2]descriptors.Entry{{Key: "settle", Value: text}, {Key: "settle_end", Value: text}})
		}
	})
}
