package grpcapi

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// sliceBytes returns the size of the arrays of all slices in v, including nested slices.
func sliceBytes(v reflect.Value) (n int) {
	switch v.Kind() { // the others have none
	case reflect.Slice:
		n = v.Cap() * int(v.Type().Elem().Size())
		for i := range v.Len() {
			n += sliceBytes(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += sliceBytes(v.Field(i))
		}
	}
	return n
}

// The requests are random, with few or many descriptors, with and without limits. A batch may need at most 2 KiB for
// each unit of its weight, in addition to a few times the bytes on the wire. It must also need at least a hundredth
// of that. With less, the weight would be far too large.
func TestWeightBoundsTheOutstandingWork(t *testing.T) {
	var policies []*limiter.Policy
	for i := range 5 {
		policies = append(policies, &limiter.Policy{
			Name: fmt.Sprint("k", i), Limit: compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1e9, Period: second}),
		})
	}
	s, _ := newServer(t, newLimiter(policies...), Options{})
	rng := rand.New(rand.NewPCG(1, 2))
	most := 0.0
	for range 300 {
		b := s.NewBatch()
		wire, requests := 0, 1+rng.IntN(50)
		for range requests {
			request := &rls.RateLimitRequest{Domain: "d"}
			for range 1 + rng.IntN(1+rng.IntN(DefaultDescriptors)) {
				d := &ratelimit.RateLimitDescriptor{}
				for range rng.IntN(1 + rng.IntN(DefaultEntries)) {
					d.Entries = append(d.Entries, &ratelimit.RateLimitDescriptor_Entry{
						Key: fmt.Sprint("k", rng.IntN(8)), Value: strings.Repeat("v", rng.IntN(1+rng.IntN(100))),
					})
				}
				request.Descriptors = append(request.Descriptors, d)
			}
			message, err := proto.Marshal(request)
			if err != nil {
				t.Fatal(err)
			}
			wire += len(message)
			b.Add(message, time.Now(), 0, nil, nil)
		}
		submit(b)
		sum := sliceBytes(reflect.ValueOf(b.checks).Elem())
		for i, r := range b.requests[:b.used] {
			_, _ = b.Answer(nil, i)
			own := sliceBytes(reflect.ValueOf(&r.call.Request).Elem()) + sliceBytes(reflect.ValueOf(&r.call.Verdict).Elem()) + cap(r.limits)*int(reflect.TypeFor[descriptorFields]().Size())
			sum += own + 2*len(r.wire)
		}
		bound := b.weight*2<<10 + 4*wire
		if sum > bound || b.weight < requests {
			t.Fatalf("%d requests of weight %d, %d bytes on the wire, need %d bytes; the bound is %d", requests, b.weight, wire, sum, bound)
		}
		if bound > 100*sum {
			t.Errorf("a weight of %d for only %d bytes", b.weight, sum)
		}
		most = max(most, float64(sum)/float64(bound))
		b.Reset()
		if b.weight != 0 {
			t.Errorf("after Reset the weight is %d, want 0", b.weight)
		}
	}
	t.Logf("at most %.2f of the bound", most)
}
