package grpcapi

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

type panics struct{}

func (panics) Swapped(*limiter.Snapshot)                     {}
func (panics) Observe(*limiter.Call)                         { panic("bug") }
func (panics) Append(dst []byte, _ *limiter.Reserved) []byte { return dst }
func (panics) Open(string, *limiter.Reserved) bool           { panic("bug") }

// A panic before or after the decision of the store denies the request, is counted once, and does not leave the request
// at the gate.
func TestAPanicAroundADecisionIsADenial(t *testing.T) {
	each(t, func(t *testing.T, send sender) { //nolint:thelper // it is the test
		p := &descriptors.Policy{Name: "k", Limit: compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 9, Period: hour})}
		for name, c := range map[string]limiter.Config{
			"before": {IDs: panics{}, Now: func() algorithms.Micros { return 1 }}, "after": {Observer: panics{}},
		} {
			l := limiter.New(memory.New(memory.Config{}), c)
			s := snapshot(p)
			s.Domains["d"].Settle = &limiter.SettleEntries{Key: "settle", End: "settle_end"}
			l.Swap(s)
			server, counted := newServer(t, l, Options{})
			key := map[string]string{"before": "settle", "after": "k"}[name]
			if got, err := send(server, t.Context(), request(key)); err != nil || got.OverallCode != over || counted.count(Panicked) != 1 {
				t.Errorf("%s: got %v, %v, %d panics; want OVER_LIMIT and one panic", name, got, err, counted.count(Panicked))
			}
			server.Panicked("elsewhere")
			if n := counted.count(Panicked); n != 2 {
				t.Errorf("%s: %d panics were counted, want 2", name, n)
			}
			if server.gate.weight != 0 {
				t.Errorf("%s: the gate has the weight %d, want 0", name, server.gate.weight)
			}
		}
	})
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

func TestARefusedRequestIsKnownInAReusedBatch(t *testing.T) {
	store := recordingStore{}
	l := limiter.New(&store, limiter.Config{})
	l.Swap(snapshot(&descriptors.Policy{Name: "k", Limit: compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 9, Period: hour})}))
	s, _ := newServer(t, l, Options{})
	batch := s.NewBatch(l)
	batch.Add(request("k"), time.Now(), 0, nil)
	submit(batch)
	store.batch.Fail(backend.ErrUnavailable)
	batch.Reset()
	batch.Add(nil, time.Now(), 0, nil)
	batch.Add(request("k"), time.Now(), 0, nil)
	submit(batch)
	if !batch.Known(0) || batch.Known(1) {
		t.Errorf("known: %t and %t; want true and false", batch.Known(0), batch.Known(1))
	}
	store.batch.Fail(backend.ErrUnavailable)
}

func TestNothingIsDecodedBeyondABound(t *testing.T) {
	entries := make([]*ratelimit.RateLimitDescriptor_Entry, DefaultEntries+5)
	for i := range entries {
		entries[i] = &ratelimit.RateLimitDescriptor_Entry{Key: "k"}
	}
	wire, err := proto.Marshal(&rls.RateLimitRequest{Domain: "d", Descriptors: []*ratelimit.RateLimitDescriptor{{Entries: entries}, {Entries: entries[:1]}}})
	if err != nil {
		t.Fatal(err)
	}
	x, err := decoded(t, wire)
	if err != nil || x.excess != BoundEntries || len(x.call.Descriptors) != 1 || len(x.call.Descriptors[0].Entries) != DefaultEntries || x.entries != DefaultEntries {
		t.Errorf("%v, exceeds %q: %d descriptors, %d entries; want 1 and %d", err, x.excess, len(x.call.Descriptors), x.entries, DefaultEntries)
	}
	wire = protowire.AppendVarint(protowire.AppendTag(request("k"), protowire.MaxValidNumber, protowire.VarintType), 1)
	if x, err = decoded(t, wire); err != nil || len(x.call.Descriptors) != 1 {
		t.Errorf("the largest number of a field: %v; want it ignored", err)
	}
	descriptor := &ratelimit.RateLimitDescriptor{Limit: &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 3, Unit: 1}}
	if wire, err = proto.Marshal(&rls.RateLimitRequest{Descriptors: []*ratelimit.RateLimitDescriptor{descriptor, {}}}); err != nil {
		t.Fatal(err)
	}
	if x, err = decoded(t, wire); err != nil || !x.call.Descriptors[0].HasOverride || x.call.Descriptors[1].HasOverride {
		t.Errorf("%v: got %+v; want an override of the first descriptor", err, x.call.Descriptors)
	}
}

func TestHeadersAndBodiesOfAServer(t *testing.T) {
	for _, h := range []*Headers{nil, {"X-Limit", "X-Left", "X-Reset"}} {
		l := newLimiter(&descriptors.Policy{Name: "k", Limit: compile(t, algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 1, Period: hour})})
		l.Current().Domains["d"].DenyBody = descriptors.TextBody
		s, _ := newServer(t, l, Options{Headers: h})
		for i := range 2 {
			got, err := sendByGRPC(s, t.Context(), request("k"))
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, header := range got.ResponseHeadersToAdd {
				names = append(names, header.Key)
			}
			want := ""
			if h != nil {
				want = "x-limit x-left x-reset"
			}
			if i == 1 {
				want = strings.TrimSpace(want + " content-type")
			}
			if text := strings.Join(names, " "); text != want || (len(got.RawBody) > 0) != (i == 1) {
				t.Errorf("request %d: headers %q, body %q; want %q, and a body of a denial", i, text, got.RawBody, want)
			}
		}
	}
	bad := Options{Headers: &Headers{"a b", "c", "d"}}
	if s, err := New(newLimiter(), &refusals{}, bad, zap.NewNop()); err == nil || s != nil || bad.Check() == nil {
		t.Errorf("got %v, %v; want an error from New and from Check", s, err)
	}
}

func TestReasonsInHeaders(t *testing.T) {
	p := &descriptors.Policy{Limit: compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Period: minute}), Alone: true, Reference: true}
	away := limiter.Result{Policy: p, Outcome: limiter.FailedDenied, Decision: backend.Decision{Err: backend.ErrUnavailable}}
	missing := verdict(true)
	missing.Missing = limiter.Requirement{"user"}
	for name, c := range map[string]struct {
		v    *limiter.Verdict
		want string
	}{
		"a missing entry":                  {missing, "x-ratelimit-reason=missing-descriptor"},
		"a limit, and one that is unknown": {verdict(true, result(p, limiter.Allowed, algorithms.Decision{Remaining: 3, ResetAfter: second}), away), "ratelimit-limit=10 ratelimit-remaining=3 ratelimit-reset=1 x-ratelimit-reason=backend-failure"},
	} {
		h, err := usual.check()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, header := range reread(t, h.append(nil, c.v)).ResponseHeadersToAdd {
			got = append(got, header.Key+"="+header.Value)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %q, want %q", name, s, c.want)
		}
	}
}

// The reference server has no permanent denials, and a limit of 0 has windows.
func TestResetTimesOfTheReferenceServer(t *testing.T) {
	limit := compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: minute, Start: new(algorithms.Micros)})
	none := compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Period: minute, Start: new(algorithms.Micros)})
	never := algorithms.Decision{Never: true, ResetAfter: 9 * second}
	for _, c := range []struct {
		p     descriptors.Policy
		never bool
		want  int64
	}{
		{descriptors.Policy{Limit: none, Reference: true, Alone: true}, true, 50},
		{descriptors.Policy{Limit: none, Reference: true}, false, 50},
		{descriptors.Policy{Limit: none}, true, 0}, {descriptors.Policy{Limit: none}, false, 0},
		{descriptors.Policy{Limit: limit, Reference: true, Alone: true}, true, 9},
		{descriptors.Policy{Limit: limit, Reference: true, Alone: true}, false, 9},
		{descriptors.Policy{Limit: limit, Reference: true}, true, 0},
		{descriptors.Policy{Limit: limit, Reference: true}, false, 0},
		{descriptors.Policy{Limit: limit, Alone: true}, true, 0},
	} {
		r := result(&c.p, limiter.Denied, never)
		r.Decision.At = 10 * second
		v := verdict(true, r)
		v.Never = c.never
		if got := reread(t, appendVerdict(nil, v, nil)).Statuses[0].DurationUntilReset.GetSeconds(); got != c.want {
			t.Errorf("reference %t, alone %t, rate %d, never %t: %d s, want %d", c.p.Reference, c.p.Alone, c.p.Limit.Rate, c.never, got, c.want)
		}
	}
}

// The two limits share a place in the cache and have equal numbers, but different names.
func TestLimitsWithEqualNumbersKeepTheirNames(t *testing.T) {
	limit := compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: minute})
	var known knownLimits
	for _, name := range []string{"a", "b", "b", "a"} {
		p := &descriptors.Policy{RateName: name, Limit: limit}
		r := reread(t, appendVerdict(nil, verdict(false, result(p, limiter.Allowed, algorithms.Decision{Remaining: 1})), &known))
		if got := r.Statuses[0].CurrentLimit.Name; got != name {
			t.Errorf("got the name %s, want %s", got, name)
		}
	}
}

func TestMetadataOfDifferentKinds(t *testing.T) {
	m := func(value any) map[string]any { return map[string]any{"k": value} }
	for _, c := range []struct{ into, from, want any }{ // want nil means a map with the value 1
		{1, 2, 1}, {m(1), 2, nil}, {1, m(2), 1}, {m(1), m(2), nil},
	} {
		got := merge(m(c.into), m(c.from))["k"]
		if inner, is := got.(map[string]any); c.want != nil && got != c.want || c.want == nil && (!is || inner["k"] != 1) {
			t.Errorf("%v and %v: got %v, want %v, or if that is nil a map with 1", c.into, c.from, got, c.want)
		}
	}
}

// A request that is heavier than the gate passes alone. A connection is known while it has admitted requests.
func TestTheGateCountsConnections(t *testing.T) {
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

// When a heavy request leaves, as many waiting requests enter as have room together, and no more.
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
