package grpcapi

import (
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/rlstest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// TestABatchOverASwapShowsBothLimits: each answer shows the limit that its request met, though both limits
// have the same name, and the same place in the table of encoded limits.
func TestABatchOverASwapShowsBothLimits(t *testing.T) {
	hourly := func(rate int64) *descriptors.Policy {
		return &descriptors.Policy{Name: "k", Limit: compile(t, algorithms.Spec{Kind: algorithms.SlidingLog, Rate: rate, Period: hour})}
	}
	l := newLimiter(hourly(5))
	s, _ := newServer(t, l, Options{})
	batch := s.NewBatch(l)
	message, err := proto.Marshal(rlstest.Request("d", rlstest.Descriptor("k=v")))
	if err != nil {
		t.Fatal(err)
	}
	for _, after := range []*limiter.Snapshot{snapshot(hourly(9)), snapshot(hourly(7))} {
		batch.Reset()
		first := l.Current().Policies[0].Limit.Rate
		batch.Add(message, time.Now(), 0, nil)
		l.Swap(after)
		batch.Add(message, time.Now(), 0, nil)
		submit(batch)
		for i, want := range []int64{first, after.Policies[0].Limit.Rate} {
			batch.Finish(i)
			data, err := batch.Append(nil, i)
			if err != nil {
				t.Fatal(err)
			}
			var answer rls.RateLimitResponse
			if err := proto.Unmarshal(data, &answer); err != nil {
				t.Fatal(err)
			}
			if got := answer.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit(); int64(got) != want {
				t.Errorf("request %d: %d an hour, want %d", i, got, want)
			}
		}
	}
}
