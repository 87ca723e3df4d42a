//go:build unix

package redis

import (
	"context"
	"fmt"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// BenchmarkThen compares a request with two plain limits to a request with Then: a plan, and credits that pay when the
// plan denies.
func BenchmarkThen(b *testing.B) {
	server, _, n := benchNode(b)
	much := roomy(b)["token bucket"]
	few, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 3, Period: 300 * algorithms.Day})
	if err != nil {
		b.Fatal(err)
	}
	forms := []struct {
		name          string
		plan, credits *algorithms.Limit
		then, allowed bool
	}{
		{"two", much, much, false, true}, {"plan", much, much, true, true}, {"credits", &few, much, true, true}, {"denied", &few, &few, true, false},
	}
	const each = 10_240 // more than the number of keys, so that two rounds use up a plan and its credits
	for _, size := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(size, " a call"), func(b *testing.B) {
			charges, decisions := make([]backend.Charge, 2*size), make([]backend.Decision, 2*size)
			run := func(form int, first bool) float64 {
				f := &forms[form]
				before := cpuSeconds(b, []*redistest.Server{server})
				for i := 0; i < each; i += size {
					for j := range size {
						key, terms := (i+j)*7919%benchKeys, algorithms.Charge{Cost: 2}
						charges[2*j] = backend.Charge{Key: fmt.Appendf(nil, "edge/%s/plan/%d", f.name, key), Limit: f.plan, Group: j, Terms: terms, Then: f.then}
						charges[2*j+1] = backend.Charge{Key: fmt.Appendf(nil, "edge/%s/credits/%d", f.name, key), Limit: f.credits, Group: j, Terms: terms}
					}
					clear(decisions)
					n.Take(context.Background(), charges, decisions)
					if d := decisions[:2]; d[0].Err != nil || !first && backend.Allowed(charges[:2], d) != f.allowed {
						b.Fatalf("%s: %+v", f.name, d)
					}
				}
				return (cpuSeconds(b, []*redistest.Server{server}) - before) / each * 1e6
			}
			for i := range forms {
				run(i, true)
				run(i, true)
			}
			sum, rounds := make([]float64, len(forms)), 0.0
			for b.Loop() {
				rounds++
				for i := range forms {
					sum[i] += run(i, false)
				}
			}
			b.ReportMetric(0, "ns/op")
			for i := range forms {
				b.ReportMetric(sum[i]/rounds, "redis-us/"+forms[i].name)
			}
		})
	}
}
