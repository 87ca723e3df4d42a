package grpcapi

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// from returns the context of a request on a connection with this name.
func from(ctx context.Context, name string) context.Context {
	return peer.NewContext(ctx, &peer.Peer{Addr: &net.UnixAddr{Name: name}})
}

const ms = time.Millisecond

func TestConnectionsPassTheGateInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		var mu sync.Mutex
		var order []string
		var all sync.WaitGroup
		send := func(ctx context.Context, weight int) {
			p, ok := g.enter(ctx, time.Hour, weight, 1)
			if !ok {
				t.Error("not admitted")
				return
			}
			mu.Lock()
			order = append(order, clientOf(ctx).String())
			mu.Unlock()
			time.Sleep(ms)
			g.leave(p)
		}
		greedy, other, small := from(t.Context(), "greedy"), from(t.Context(), "other"), from(t.Context(), "small")
		for range 10 { // the gate admits two of these at a time
			all.Go(func() { send(greedy, gateWeight/2) })
			synctest.Wait()
		}
		for range 2 {
			all.Go(func() { send(other, gateWeight/2) })
			synctest.Wait()
		}
		start := time.Now()
		send(small, gateOwn)
		if took := time.Since(start); took != ms {
			t.Errorf("a small request took %v; want 1 ms, without a wait at the gate", took)
		}
		all.Wait()
		// The greedy connection has two admitted requests when the requests of the other one arrive. From then
		// on the connections must take turns.
		want := strings.Fields("greedy greedy small greedy other greedy other greedy greedy greedy greedy greedy greedy")
		slices.Sort(order[3:5]) // both admitted at once
		slices.Sort(order[5:7])
		slices.Sort(want[3:5])
		slices.Sort(want[5:7])
		if !slices.Equal(order, want) {
			t.Errorf("admitted in the order\n%v\nwant\n%v", order, want)
		}
		if g.weight != 0 || g.waiting != 0 || len(g.conns) != 0 || len(g.turns) != 0 {
			t.Errorf("still at the gate: %+v", g)
		}
	})
}

func TestWaitsForAdmissionAreShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		inside, ok := g.enter(from(t.Context(), "a"), 10*ms, gateWeight, 1)
		if !ok {
			t.Fatal("not admitted")
		}
		wait := func(ctx context.Context, want time.Duration) {
			start := time.Now()
			if _, ok := g.enter(ctx, 10*ms, gateOwn+1, gateBytes); ok || time.Since(start) != want {
				t.Errorf("admitted: %v, after %v; want false after %v", ok, time.Since(start), want)
			}
		}
		b := from(t.Context(), "b")
		wait(b, 10*ms)
		soon, cancel := context.WithTimeout(b, 6*ms) // of which 2 ms are reserved for the answer
		defer cancel()
		wait(soon, 4*ms)
		var one sync.WaitGroup
		one.Go(func() { wait(b, 10*ms) })
		synctest.Wait()
		wait(b, 0) // too many bytes wait
		one.Wait()
		g.leave(inside)
		if p, ok := g.enter(b, 0, gateOwn+1, 1); !ok {
			t.Error("not admitted after the other requests have left or given up")
		} else {
			g.leave(p)
		}
		if g.weight != 0 || g.waiting != 0 || len(g.conns) != 0 || len(g.turns) != 0 {
			t.Errorf("still at the gate: %+v", g)
		}
	})
}

// The on_backend_failure of the limit must determine the answer to a request that is not admitted. The request must
// be reported like other requests.
func TestARequestThatIsNotAdmittedIsAnsweredByItsLimit(t *testing.T) {
	for onFailure, want := range map[limiter.OnFailure]int32{limiter.Deny: int32(over), limiter.Allow: int32(ok)} {
		synctest.Test(t, func(t *testing.T) {
			sent, observed := make(chan struct{}), &observed{}
			s, _ := newServer(t, slowStore(sent).limiter(t, onFailure, observed), Options{QueueTimeout: 5 * ms})
			var first sync.WaitGroup
			ctx := from(t.Context(), "a")
			for range 21 { // 2,100 descriptors, so the gate is full, and the last of these requests is not admitted either
				first.Go(func() {
					if _, err := sendByGRPC(s, ctx, request(slices.Repeat([]string{"k"}, 100)...)); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
			start := time.Now()
			got, err := sendByGRPC(s, ctx, request("k"))
			if err != nil || int32(got.OverallCode) != want || time.Since(start) != 5*ms {
				t.Errorf("got %v, %v after %v; want the code %v after 5 ms", got, err, time.Since(start), want)
			}
			synctest.Wait()
			if n := observed.Load(); n != 2 {
				t.Errorf("%d requests were reported; want 2, the requests that were not admitted", n)
			}
			close(sent)
			first.Wait()
		})
	}
}

type observed struct{ atomic.Int64 }

func (*observed) Swapped(*limiter.Snapshot) {}

func (o *observed) Observe(*limiter.Call) { o.Add(1) }

// slowStore answers when the channel is closed, or at once if the deadline has passed. The goroutine that submits
// waits.
type slowStore chan struct{}

func (s slowStore) Submit(b *backend.Batch) {
	if !b.Deadline.IsZero() && !time.Now().Before(b.Deadline) {
		b.Fail(backend.ErrUnavailable)
		return
	}
	<-s
	b.Done(b)
}

func (s slowStore) limiter(tb testing.TB, onFailure limiter.OnFailure, o limiter.Observer) *limiter.Limiter {
	tb.Helper()
	l := limiter.New(s, limiter.Config{Observer: o})
	l.Swap(snapshot(&limiter.Policy{
		Name: "k", OnFailure: onFailure, Limit: compile(tb, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: second}),
	}))
	return l
}

func TestARequestWithoutRoomToWaitLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		inside, _ := g.enter(from(t.Context(), "a"), 0, gateWeight, 1)
		for _, name := range strings.Fields("b c d") {
			if _, ok := g.enter(from(t.Context(), name), time.Hour, gateOwn+1, gateBytes+1); ok {
				t.Errorf("the request of connection %s was admitted; want it refused", name)
			}
		}
		if len(g.conns) != 1 || g.waiting != 0 || len(g.turns) != 0 {
			t.Errorf("%d connections, %d bytes, %d turns at the gate; want the connection of the admitted request alone", len(g.conns), g.waiting, len(g.turns))
		}
		g.leave(inside)
	})
}

// Without Options.QueueTimeout a request waits 10 ms. A body in JSON is not decoded before its turn.
func TestRequestsWaitBeforeTheyAreDecoded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newServer(t, newLimiter(), Options{})
		inside, _ := s.gate.enter(from(t.Context(), "a"), 0, gateWeight, 1)
		ctx := from(t.Context(), "b")
		body := []byte(strings.Repeat("{", 2*gateOwn+2)) // not JSON; its weight exceeds gateOwn
		wire := request(make([]string, gateOwn+1)...)
		start := time.Now()
		took := func() time.Duration {
			d := time.Since(start)
			start = time.Now()
			return d
		}
		code, text := s.AnswerJSON(ctx, body, false)
		if d := took(); code != 400 || d != 10*ms {
			t.Errorf("JSON: got %d %s after %v; want status 400 after 10 ms", code, text, d)
		}
		got, err := sendByGRPC(s, ctx, wire)
		if d := took(); err != nil || got.OverallCode != ok || d != 10*ms {
			t.Errorf("gRPC: got %v, %v after %v; want OK after 10 ms", got, err, d)
		}
		s.gate.leave(inside)
	})
}

// The estimate counts descriptors up to the bound, because the others are not decoded.
func TestEstimatesOfWeights(t *testing.T) {
	for n, want := range map[int]int{0: 1, 1: 1, 7: 7, 8: 8, 9: 8, 5000: 8} {
		m := message{wire: request(make([]string, n)...)}
		if got := m.estimateWeight(8); got != want {
			t.Errorf("%d descriptors: got %d, want %d", n, got, want)
		}
	}
}

func TestRefusedRequestsLeaveTheGate(t *testing.T) {
	each(t, func(t *testing.T, send sender) { //nolint:thelper // it is the test
		s, _ := newServer(t, newLimiter(), Options{})
		for _, wire := range [][]byte{{0x0a}, nil, request(), request(make([]string, DefaultDescriptors+1)...)} {
			_, err := send(s, t.Context(), wire)
			if malformed := len(wire) == 1; malformed && grpcstatus.Code(err) != codes.Internal {
				t.Errorf("malformed: got %v; want the code Internal", err)
			}
			if s.gate.weight != 0 || len(s.gate.conns) != 0 {
				t.Errorf("%x: the gate has the weight %d and %d connections, want none", wire, s.gate.weight, len(s.gate.conns))
			}
		}
	})
}

// A request with a weight above gateWeight is admitted if it is alone. A connection with a weight of at most gateOwn
// never waits.
func TestTheGateCountsTheWeightOfEachConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		a, b := from(t.Context(), "a"), from(t.Context(), "b")
		heavy, ok := g.enter(a, 0, 10*gateWeight, 1)
		if !ok || g.weight != gateWeight {
			t.Fatalf("admitted: %t, with the weight %d; want true and %d", ok, g.weight, gateWeight)
		}
		first, ok1 := g.enter(b, 0, gateOwn/2, 1)
		second, ok2 := g.enter(b, 0, gateOwn/2, 1)
		if _, ok := g.enter(b, 0, 1, 1); !ok1 || !ok2 || ok {
			t.Errorf("admitted: %t, %t, %t; want the first two, which have the weight that a connection has for itself", ok1, ok2, ok)
		}
		if g.leave(first); len(g.conns) != 2 {
			t.Errorf("%d connections, want 2", len(g.conns))
		}
		if _, ok := g.enter(b, 0, gateOwn/2+1, 1); ok || len(g.conns) != 2 {
			t.Errorf("admitted: %t, %d connections; want false, because the second request is still admitted, and 2", ok, len(g.conns))
		}
		g.leave(second)
		g.leave(heavy)
		if g.weight != 0 || len(g.conns) != 0 || len(g.turns) != 0 {
			t.Errorf("weight %d, %d connections and %d turns are still at the gate; want none", g.weight, len(g.conns), len(g.turns))
		}
		s, _ := newServer(t, newLimiter(), Options{})
		inside, _ := s.gate.enter(a, 0, gateWeight, 1)
		start := time.Now()
		if code, _ := s.AnswerJSON(b, []byte(strings.Repeat("{", 2*gateOwn)), false); code != 400 || time.Since(start) != 0 {
			t.Errorf("JSON of the weight that a connection has for itself: status %d after %v; want 400 at once", code, time.Since(start))
		}
		s.gate.leave(inside)
	})
}

// When a heavy request leaves, waiting requests are admitted until the next one does not fit.
func TestTheGateFillsTheRoomOfARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		inside, _ := g.enter(from(t.Context(), "a"), 0, gateWeight, 1)
		var all sync.WaitGroup
		for _, name := range []string{"b", "c", "d"} {
			all.Go(func() {
				if p, ok := g.enter(from(t.Context(), name), time.Hour, gateWeight/2, 1); ok {
					time.Sleep(ms)
					g.leave(p)
				}
			})
			synctest.Wait()
		}
		g.leave(inside)
		synctest.Wait()
		g.mu.Lock() // the admitted requests leave later
		weight, waiting := g.weight, g.waiting
		g.mu.Unlock()
		if weight != gateWeight || waiting != 1 {
			t.Errorf("the weight %d is admitted and %d bytes wait; want %d and 1", weight, waiting, gateWeight)
		}
		all.Wait()
	})
}
