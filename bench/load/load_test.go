package load

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

type server struct {
	answer func(value string) (rls.RateLimitResponse_Code, error)

	mu      sync.Mutex
	started map[string]int // guarded by mu
}

func (s *server) ShouldRateLimit(_ context.Context, r *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	value := r.Descriptors[0].Entries[0].Value
	s.mu.Lock()
	s.started[value]++
	s.mu.Unlock()
	code, err := s.answer(value)
	return &rls.RateLimitResponse{OverallCode: code}, err
}

func serve(t *testing.T, answer func(string) (rls.RateLimitResponse_Code, error)) (*server, string) {
	t.Helper()
	s := &server{answer: answer, started: map[string]int{}}
	return s, listen(t, s)
}

type answers func(*rls.RateLimitRequest) *rls.RateLimitResponse

func (a answers) ShouldRateLimit(_ context.Context, r *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	return a(r), nil
}

func listen(t *testing.T, s rls.RateLimitServiceServer) (address string) {
	t.Helper()
	address = "unix://" + filepath.Join(t.TempDir(), "s")
	listener, err := Listen(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	rls.RegisterRateLimitServiceServer(g, s)
	go func() { _ = g.Serve(listener) }()
	t.Cleanup(g.Stop)
	return address
}

func allow(string) (rls.RateLimitResponse_Code, error) { return rls.RateLimitResponse_OK, nil }

func TestEveryKeyIsSentOnce(t *testing.T) {
	s, address := serve(t, allow)
	r, err := Run(t.Context(), Config{Target: address, PID: os.Getpid(),
		Keys: 500, FirstKey: 7, InTurn: true, Requests: 500})
	if err != nil {
		t.Fatal(err)
	}
	if r.OK != 500 || r.OverLimit != 0 || r.Failed() != 0 || r.CPU <= 0 || r.RSS <= 0 || r.P50 <= 0 || r.Max < r.P99 {
		t.Errorf("got %v; want 500 allowed answers, no other answer, and CPU, memory and times above 0", &r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.started) != 500 || s.started["00000007"] != 1 || s.started["00000506"] != 1 {
		t.Errorf("the server received %d different keys; want 500, and each of them once", len(s.started))
	}
}

func TestAnswersAreDistinguished(t *testing.T) {
	_, address := serve(t, func(value string) (rls.RateLimitResponse_Code, error) {
		switch value {
		case "00000000":
			return rls.RateLimitResponse_OVER_LIMIT, nil
		case "00000001":
			return rls.RateLimitResponse_UNKNOWN, nil
		case "00000002":
			return 0, status.Error(codes.Internal, "no")
		default:
			return rls.RateLimitResponse_OK, nil
		}
	})
	r, err := Run(t.Context(), Config{Target: address, Keys: 10, InTurn: true, Requests: 100})
	if err != nil {
		t.Fatal(err)
	}
	if r.OverLimit != 10 || r.OK != 70 || r.Failed() != 20 || r.Errors["the answer cannot be decoded, or its code is unknown"] != 10 {
		t.Errorf("got %v; want 70 allowed, 10 denied, and 20 failed, half of which cannot be decoded", &r)
	}
}

// TestHalfOfTheRequestsSettle runs a server that answers each request with a reservation, except settlements. A later
// request settles the reservation with its id, except up to 64 at the end of the run, one for each outstanding request.
func TestHalfOfTheRequestsSettle(t *testing.T) {
	var mu sync.Mutex
	reserved, settled := 0, map[string]int{}
	address := listen(t, answers(func(r *rls.RateLimitRequest) *rls.RateLimitResponse {
		mu.Lock()
		defer mu.Unlock()
		response := &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK}
		first := r.Descriptors[0]
		if first.Entries[0].Key != "settle" {
			reserved++
			response.DynamicMetadata, _ = structpb.NewStruct(map[string]any{"metadata": map[string]any{}, "settle": fmt.Sprint("id", reserved)})
			return response
		}
		settled[first.Entries[0].Value]++
		if r.Domain != "ai" || first.HitsAddend.GetValue() != realCost || len(r.Descriptors) != 2 || r.Descriptors[1].HitsAddend == nil ||
			r.Descriptors[1].HitsAddend.Value != 0 || r.Descriptors[1].Entries[0].Key != "settle_end" || r.Descriptors[1].Entries[0].Value != first.Entries[0].Value {
			t.Errorf("got the settlement %v; want the real cost, and the end of the same reservation", r)
		}
		return response
	}))
	r, err := Run(t.Context(), Config{Target: address, Domain: "ai", Settle: true, Requests: 1000})
	if err != nil || r.OK != 1000 || r.Failed() != 0 {
		t.Fatalf("got %v, %v; want 1000 allowed answers and no failure", &r, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if n := len(settled); n+reserved != 1000 || n < 500-64 || n > 500 {
		t.Errorf("%d requests reserved, %d settled; want 1000 in total, and 436 to 500 that settle", reserved, n)
	}
	for id, n := range settled {
		if n != 1 {
			t.Errorf("%s was settled %d times; want once", id, n)
		}
	}
}

func TestAStallDelaysAllRequestsThatWereDue(t *testing.T) {
	var once sync.Once
	_, address := serve(t, func(string) (rls.RateLimitResponse_Code, error) {
		once.Do(func() { time.Sleep(200 * time.Millisecond) })
		return rls.RateLimitResponse_OK, nil
	})
	r, err := Run(t.Context(), Config{Target: address, Connections: 2, Outstanding: 1,
		Rate: 500, Duration: 400 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	// Half of the requests of one connection were due during the stall. If latency were measured from the time of sending,
	// only one would be late.
	if r.Failed() > 0 || r.OK != 200 || r.P99 < 100 || r.Max < 200 {
		t.Errorf("got %v; want 200 answers and no failure, p99 of at least 100 ms and a maximum of at least 200 ms", &r)
	}
}

func TestOpenLoopThatFallsBehindEnds(t *testing.T) {
	before := answerTimeout
	t.Cleanup(func() { answerTimeout = before })
	answerTimeout = 2 * time.Second
	_, address := serve(t, func(string) (rls.RateLimitResponse_Code, error) {
		time.Sleep(10 * time.Millisecond)
		return rls.RateLimitResponse_OK, nil
	})
	r, err := Run(t.Context(), Config{Target: address, Connections: 1, Outstanding: 1,
		Rate: 10000, Duration: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	// 1,000 requests take 10 seconds, of which the run waits for 2.
	if r.Failed() > 0 || r.OK == 0 || r.OK > 500 || r.PerSecond > 200 {
		t.Errorf("got %v; want only the answers that arrived in time: 1 to 500, at most 200 per second, no failure", &r)
	}
}
