package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"google.golang.org/protobuf/proto"

	"github.com/rlsidecar/rlsidecar/internal/testkit/rlstest"
)

// containerMiB is the memory of the container. In such a container, the sidecar sets the limit of the garbage
// collector to nine tenths of it.
const containerMiB = 64

// anonymous is the resident anonymous memory of a process in KiB. Unlike pages of files, the system cannot take it back,
// so it counts for the OOM killer.
const anonymous = "RssAnon"

// streamFlood is a client that opens many streams on each of its connections and leaves them open.
type streamFlood struct {
	connections, streams int
	method               string
	window               uint32 // SETTINGS_INITIAL_WINDOW_SIZE
	data                 []byte // the body of each request; nil means no DATA frame
	end                  bool   // the requests are complete
}

func (f streamFlood) bytes() []byte {
	var out bytes.Buffer
	to := startHTTP2(&out, http2.Setting{ID: http2.SettingInitialWindowSize, Val: f.window})
	for i := range f.streams {
		id := uint32(2*i + 1)
		startStream(to, id, false, header{":method", "POST"}, header{":scheme", "http"}, header{":path", f.method}, header{":authority", "test"},
			header{"content-type", "application/grpc"}, header{"te", "trailers"})
		if f.data != nil {
			_ = to.WriteData(id, f.end, f.data)
		}
	}
	return out.Bytes()
}

// run opens the connections, sends the requests, and reads all answers until ctx ends. A connection that the
// sidecar has closed is opened again.
func (f streamFlood) run(ctx context.Context, addr string) *sync.WaitGroup {
	var all sync.WaitGroup
	request := f.bytes()
	for range f.connections {
		all.Go(func() {
			for {
				nc, err := net.Dial("tcp", addr)
				if err == nil {
					closed := context.AfterFunc(ctx, func() { nc.Close() })
					go func() { _, _ = nc.Write(request) }()
					_, _ = io.Copy(io.Discard, nc)
					closed()
					nc.Close()
				}
				select {
				case <-ctx.Done():
					return
				case <-time.After(100 * time.Millisecond):
				}
			}
		})
	}
	return &all
}

// A client that opens streams without end must neither exhaust the memory of a small container nor keep another client
// from its answers.
func TestFloodsOfStreamsFitIntoASmallContainer(t *testing.T) {
	message, err := proto.Marshal(rlstest.Request("none", "none=1"))
	if err != nil {
		t.Fatal(err)
	}
	complete := append([]byte{0, 0, 0, 0, byte(len(message))}, message...)
	watch := make([]byte, 5)
	for name, flood := range map[string]streamFlood{
		"HEADERS only":          {14, 16_000, "/" + shouldRateLimit, 65_535, nil, false},
		"a byte of each body":   {14, 16_000, "/" + shouldRateLimit, 65_535, []byte{0}, false},
		"a window of 0":         {20, 16_000, "/" + shouldRateLimit, 0, complete, true},
		"watches of the health": {14, 256, "/grpc.health.v1.Health/Watch", 65_535, watch, true},
		"reflection":            {14, 256, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", 65_535, nil, false},
		"many connections":      {100, 16_000, "/" + shouldRateLimit, 0, complete, true},
	} {
		t.Run(name, func(t *testing.T) {
			addr := loopback()
			s := serve(t, addr, fmt.Sprintf("GOMEMLIMIT=%d", containerMiB<<20*9/10), "GOMAXPROCS=2", "--config", root+"/examples/http-api/limits.yaml", "--admin-listen", "")
			ctx, stop := context.WithCancel(t.Context())
			before := s.resident(t, anonymous)
			attack := flood.run(ctx, addr+":8081")
			sent, denied, most := s.quiet(t, addr+":8081", 1500*time.Millisecond)
			stop()
			attack.Wait()
			t.Logf("%d KiB before, at most %d KiB", before, most)
			if most > containerMiB<<10 {
				t.Errorf("the sidecar used %d KiB; want at most %d", most, containerMiB<<10)
			}
			if denied > 0 {
				t.Errorf("%d of %d answers to another client were denials or errors; want none", denied, sent)
			}
		})
	}
}

// quiet sends 200 requests a second for d. It returns their number, the number of denials and errors, and the most memory
// that the sidecar used.
func (p *process) quiet(t *testing.T, addr string, d time.Duration) (sent, denied, most int) {
	t.Helper()
	client := rls.NewRateLimitServiceClient(dial(t, addr))
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		answer, err := client.ShouldRateLimit(ctx, rlstest.Request("none", "none=1"))
		cancel()
		sent++
		if err != nil || answer.GetOverallCode() != rls.RateLimitResponse_OK {
			if denied++; denied == 1 {
				t.Logf("%v %v", answer, err)
			}
		}
		most = max(most, p.resident(t, anonymous))
	}
	return sent, denied, most
}
