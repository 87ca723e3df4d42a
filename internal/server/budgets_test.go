package server

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	rtmetrics "runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

const budgetsYAML = `
domain: d
descriptors:
  - {key: k, rate_limit: {algorithm: token_bucket, rate: 1000000, period: 1s}}
  - {key: small, rate_limit: {algorithm: token_bucket, rate: 1000000, period: 1s}}
`

// bytesCodec sends bytes unchanged. Of a received message it keeps only the length.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (bytesCodec) Unmarshal(b mem.BufferSlice, v any) error { *v.(*int) = b.Len(); return nil }
func (bytesCodec) Name() string                             { return "proto" }

// manyDescriptors returns a request with n descriptors. Their values are consecutive numbers that start with first.
func manyDescriptors(tb testing.TB, n, first int) []byte {
	tb.Helper()
	var texts []string
	for i := range n {
		texts = append(texts, fmt.Sprint("k=", first+i))
	}
	b, err := proto.Marshal(request("d", texts...))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func heap() uint64 {
	sample := []rtmetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	rtmetrics.Read(sample)
	return sample[0].Value.Uint64()
}

// beside sends small requests, one after the other, while attack runs. Each must be allowed by its limit,
// and the heap may grow by at most 128 MiB.
func (x *instance) beside(t *testing.T, attack func()) {
	t.Helper()
	runtime.GC()
	before, most := heap(), uint64(0)
	done := make(chan struct{})
	go func() { defer close(done); attack() }()
	answered := 0
	for over := false; !over; answered++ {
		select {
		case <-done:
			over = true
		default:
		}
		answer := x.send(t, fmt.Sprint("small=", answered))
		if s := answer.Statuses; answer.OverallCode != rls.RateLimitResponse_OK || len(s) != 1 || s[0].CurrentLimit == nil {
			t.Errorf("small request %d: %v; want OK by its limit", answered, answer)
		}
		most = max(most, heap())
	}
	t.Logf("%d small requests; the heap grew by up to %d MiB", answered, (max(most, before)-before)>>20)
	if most > before+128<<20 {
		t.Errorf("the heap grew from %d to %d bytes; want at most %d", before, most, before+128<<20)
	}
}

// 500 concurrent requests with 1,000 descriptors each, which is more than allowed, are sent on one connection. Then
// 3,000 requests with the allowed number of descriptors are sent. Other clients must be served meanwhile.
func TestManyDescriptorsAffectNoOtherClient(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes under the race detector")
	}
	redis := redistest.Start(t)
	for name, edit := range map[string]func(*Config){
		"memory": func(*Config) {},
		// The deadline is this long for slow machines, where a short one would deny requests.
		"redis": func(c *Config) { c.Redis = Redis{URL: "redis://" + redis.Addr, Timeout: time.Minute} },
	} {
		t.Run(name, func(t *testing.T) {
			x := start(t, budgetsYAML, edit)
			// Large windows: on a slow machine, answers that wait for windows could wait longer than a client may let them.
			greedy := dial(t, x.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesCodec{})),
				grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(1<<30))
			for _, attack := range []struct{ requests, descriptors int }{{500, 1000}, {3000, 100}} {
				wire := make([][]byte, 10)
				for i := range wire {
					wire[i] = manyDescriptors(t, attack.descriptors, i*attack.descriptors)
				}
				var answers atomic.Int64
				x.beside(t, func() {
					var wg sync.WaitGroup
					for i := range attack.requests {
						wg.Go(func() {
							var n int
							if err := greedy.Invoke(t.Context(), "/"+grpcapi.ServiceName+"/ShouldRateLimit", wire[i%len(wire)], &n); err != nil || n == 0 {
								t.Errorf("%d bytes, %v; want no error and n above 0", n, err)
								return
							}
							answers.Add(1)
						})
					}
					wg.Wait()
				})
				if n := answers.Load(); n != int64(attack.requests) {
					t.Errorf("%d answers to %d requests; want %v", n, attack.requests, int64(attack.requests))
				}
			}
			if text := x.metrics(t); !strings.Contains(text, `rlsidecar_requests_too_large_total{bound="descriptors"} 500`) ||
				!strings.Contains(text, `rlsidecar_requests_refused_total{reason="too_much"} 500`) {
				t.Error("the metrics do not count 500 requests that were too large; want both counters at 500")
			}
		})
	}
}

// Clients repeatedly post large bodies, 32 at a time: two that are filled with empty objects, and one with the largest
// allowed number of descriptors.
func TestLargeBodiesOfJSONAffectNoOtherClient(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes under the race detector")
	}
	x := start(t, budgetsYAML)
	empty := func(size int) string {
		const head, tail = `{"domain":"d","descriptors":[{}`, `]}`
		return head + strings.Repeat(",{}", (size-len(head)-len(tail))/3) + tail
	}
	most := `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"1"}]}` +
		strings.Repeat(`,{"entries":[{"key":"k","value":"2"}]}`, 99) + `]}`
	for body, want := range map[string]int{empty(1 << 20): 413, empty(64 << 10): 429, most: 200} {
		x.beside(t, func() {
			var wg sync.WaitGroup
			for range 32 {
				wg.Go(func() {
					for range 10 {
						answer, err := http.Post(fmt.Sprint("http://", x.HTTP, "/json"), "application/json", strings.NewReader(body))
						switch {
						case (errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)) && want == http.StatusRequestEntityTooLarge:
							// The server answered and closed the connection before it had the whole body.
						case err != nil:
							t.Error(err)
						default:
							answer.Body.Close()
							if answer.StatusCode != want {
								t.Errorf("a body of %d bytes: %d, want %d", len(body), answer.StatusCode, want)
							}
						}
					}
				})
			}
			wg.Wait()
		})
	}
	eventually(t, "a small body is answered", func() bool {
		return exchange(t, http.MethodPost, x.HTTP, "/json", `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"1"}]}]}`).StatusCode == 200
	})
}
