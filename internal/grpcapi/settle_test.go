package grpcapi

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// settleServer has one domain. Its limit "user" allows 1,000 units an hour. A request reserves the number
// that it declares, but at least 100 and at most 1,000.
func settleServer(t *testing.T, o Options) *Server {
	t.Helper()
	return settleServerWith(t, reservation.NewKeys(func() []string { return []string{"secret"} }), o)
}

func settleServerWith(t *testing.T, ids limiter.IDs, o Options) *Server {
	t.Helper()
	return settleServerOn(t, memory.New(memory.Config{}), ids, o)
}

func settleServerOn(t *testing.T, store backend.Store, ids limiter.IDs, o Options) *Server {
	t.Helper()
	limit := compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1000, Period: hour, Settles: true})
	p := &limiter.Policy{Name: "user", Limit: limit, Extras: &limiter.Extras{
		Settle:   &limiter.SettleTerms{Estimate: 100, Most: 1000, Unknown: -1, TTL: minute},
		Metadata: map[string]any{"plan": "gold", "settle": "not the id"},
	}}
	s := snapshot(p)
	d := s.Domains["d"]
	d.Settle = &limiter.SettleEntries{Key: "settle", End: "settle_end"}
	d.Settling = map[uint64]*limiter.Policy{limiter.PrefixNumber(p.Prefix): p}
	l := limiter.New(store, limiter.Config{
		IDs: ids,
		Now: func() algorithms.Micros { return algorithms.Micros(time.Now().UnixMicro()) },
	})
	l.Swap(s)
	server, _ := newServer(t, l, o)
	return server
}

func hits(n uint64) *wrapperspb.UInt64Value { return wrapperspb.UInt64(n) }

func entry(key, value string, hits *wrapperspb.UInt64Value) *ratelimit.RateLimitDescriptor {
	return &ratelimit.RateLimitDescriptor{
		Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: key, Value: value}}, HitsAddend: hits,
	}
}

func encoded(hits uint32, list ...*ratelimit.RateLimitDescriptor) []byte {
	wire, err := proto.Marshal(&rls.RateLimitRequest{Domain: "d", Descriptors: list, HitsAddend: hits})
	if err != nil {
		panic(err)
	}
	return wire
}

func sent(t *testing.T, s *Server, hits uint32, list ...*ratelimit.RateLimitDescriptor) *rls.RateLimitResponse {
	t.Helper()
	reply, err := send(s, context.Background(), encoded(hits, list...))
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// idOf returns the reservation id in the dynamic metadata, which has it in two places.
func idOf(t *testing.T, r *rls.RateLimitResponse) string {
	t.Helper()
	fields := r.GetDynamicMetadata().GetFields()
	id := fields["settle"].GetStringValue()
	if nested := fields["metadata"].GetStructValue().GetFields()["settle"].GetStringValue(); nested != id {
		t.Errorf("settle is %q, metadata.settle is %q; want equal ids", id, nested)
	}
	return id
}

func TestTheAnswerHasTheReservationsID(t *testing.T) {
	for _, o := range []Options{{}, {Metadata: true}} {
		synctest.Test(t, func(t *testing.T) {
			s := settleServer(t, o)
			remaining := func() uint32 {
				t.Helper()
				r := sent(t, s, 0, entry("user", "bob", nil)) // this request reserves 100 units
				sent(t, s, 0, entry("settle", idOf(t, r), hits(0)))
				return r.GetStatuses()[0].GetLimitRemaining() + 100
			}
			first := sent(t, s, 0, entry("user", "bob", nil))
			id := idOf(t, first)
			if len(id) < 60 || first.GetStatuses()[0].GetLimitRemaining() != 900 {
				t.Fatalf("got %v; want 900 remaining and the id of a reservation", first)
			}
			if plan := first.GetDynamicMetadata().GetFields()["metadata"].GetStructValue().GetFields()["plan"]; o.Metadata != (plan.GetStringValue() == "gold") {
				t.Errorf("plan in the metadata: got %v; want gold only if metadata is enabled", plan)
			}
			done := sent(t, s, 0, entry("settle", id, hits(37)), entry("settle_end", id, hits(0)))
			if len(done.GetStatuses()) != 2 || done.GetOverallCode() != rls.RateLimitResponse_OK || !o.Metadata && done.GetDynamicMetadata() != nil {
				t.Errorf("got %v; want OK with two statuses, and metadata only if they are enabled", done)
			}
			if left := remaining(); left != 963 {
				t.Errorf("%d left, want 963", left)
			}
			// The cost may be declared by the descriptor or by the request.
			for _, declared := range []*rls.RateLimitResponse{
				sent(t, s, 0, entry("user", "carol", hits(300))), sent(t, s, 300, entry("user", "dave", nil)),
			} {
				if left := declared.GetStatuses()[0].GetLimitRemaining(); left != 700 {
					t.Errorf("%d left, want 700", left)
				}
			}
			// If the descriptor has no hits, the cost is unknown, even if the request has hits.
			erin := idOf(t, sent(t, s, 0, entry("user", "erin", nil)))
			sent(t, s, 5, entry("settle", erin, nil))
			if left := sent(t, s, 0, entry("user", "erin", nil)).GetStatuses()[0].GetLimitRemaining(); left != 800 {
				t.Errorf("%d left, want 800", left)
			}
			denied := sent(t, s, 0, entry("user", "bob", hits(1000)))
			if denied.GetOverallCode() != rls.RateLimitResponse_OVER_LIMIT || idOf(t, denied) != limiter.None {
				t.Errorf("got %v; want OVER_LIMIT and no reservation", denied)
			}
		})
	}
}

type idOfLength int

func (n idOfLength) Append(dst []byte, _ *limiter.Reserved) []byte {
	return append(dst, strings.Repeat("i", int(n))...)
}
func (idOfLength) NewID() (id [16]byte)                { return id }
func (idOfLength) Open(string, *limiter.Reserved) bool { return false }

// The messages around the id have length prefixes, whose size depends on the length of the id.
func TestIDsOfEveryLengthAreAnswered(t *testing.T) {
	for n := 1; n < limiter.MaxID; n += 1 + n/200 {
		s := settleServerWith(t, idOfLength(n), Options{})
		if got := idOf(t, sent(t, s, 0, entry("user", "bob", nil))); got != strings.Repeat("i", n) {
			t.Fatalf("an id of %d bytes: got %q", n, got)
		}
	}
}

// failing is a store that fails while down is set.
type failing struct {
	backend.Store
	down atomic.Bool
}

func (f *failing) Submit(b *backend.Batch) {
	if f.down.Load() {
		b.Fail(backend.ErrUnavailable)
		return
	}
	f.Store.Submit(b)
}

// A proxy ignores the answer to a settle-done, and may have given up waiting for it. So its deadline prevents nothing, and
// if the store fails, the answer is an error after which proxies repeat the call.
func TestASettleDoneIsDetached(t *testing.T) {
	keys := reservation.NewKeys(func() []string { return []string{"secret"} })
	store := &failing{Store: memory.New(memory.Config{})}
	s := settleServerOn(t, store, keys, Options{})
	call := func(left time.Duration, list ...*ratelimit.RateLimitDescriptor) (*rls.RateLimitResponse, codes.Code) {
		t.Helper()
		ctx := t.Context()
		if left != 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, left)
			defer cancel()
		}
		reply, err := send(s, ctx, encoded(0, list...))
		return reply, grpcstatus.Code(err)
	}
	reply, _ := call(0, entry("user", "bob", nil)) // reserves 100 of 1,000
	done := entry("settle", idOf(t, reply), hits(7))
	store.down.Store(true)
	if _, code := call(0, done); code != codes.Unavailable {
		t.Errorf("the store fails: got %v, want Unavailable", code)
	}
	store.down.Store(false)
	if _, code := call(-time.Second, entry("user", "bob", nil)); code != codes.DeadlineExceeded {
		t.Errorf("another request after its deadline: got %v, want DeadlineExceeded", code)
	}
	if _, code := call(-time.Second, done, entry("settle_end", "none", hits(0))); code != codes.OK {
		t.Errorf("after its deadline: got %v, want OK", code)
	}
	if reply, _ := call(0, entry("user", "bob", hits(0))); reply.GetStatuses()[0].GetLimitRemaining() != 893 {
		t.Errorf("%d left, want 893: 1,000 less the real cost of 7 and another estimate", reply.GetStatuses()[0].GetLimitRemaining())
	}
}

// The cost of a stream that settles by bucket is charged after the deadline of its call. No other request is.
func TestACostByBucketIsChargedAfterItsDeadline(t *testing.T) {
	limit := compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1000, Period: hour, Settles: true, OpenFor: minute})
	usual := compile(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1000, Period: hour})
	settle := &limiter.SettleTerms{Estimate: 100, Most: 1000, Unknown: -1, TTL: minute, ByBucket: true}
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{})
	l.Swap(snapshot(&limiter.Policy{Name: "user", Limit: limit, Extras: &limiter.Extras{Settle: settle}}, &limiter.Policy{Name: "team", Limit: usual}))
	s, _ := newServer(t, l, Options{})
	late, cancel := context.WithTimeout(t.Context(), -time.Second)
	defer cancel()
	user, team := entry("user", "bob", hits(7)), entry("team", "x", hits(1))
	for _, c := range []struct {
		list []*ratelimit.RateLimitDescriptor
		want codes.Code
	}{
		{[]*ratelimit.RateLimitDescriptor{user}, codes.OK},
		{[]*ratelimit.RateLimitDescriptor{entry("user", "bob", hits(0))}, codes.DeadlineExceeded},
		{[]*ratelimit.RateLimitDescriptor{entry("user", "bob", nil)}, codes.DeadlineExceeded},
		{[]*ratelimit.RateLimitDescriptor{entry("nobody", "bob", hits(7))}, codes.DeadlineExceeded},
		{[]*ratelimit.RateLimitDescriptor{team}, codes.DeadlineExceeded},
		{[]*ratelimit.RateLimitDescriptor{user, team}, codes.DeadlineExceeded},
	} {
		if _, err := send(s, late, encoded(0, c.list...)); grpcstatus.Code(err) != c.want {
			t.Errorf("%v: got %v, want %v", c.list, err, c.want)
		}
	}
	if left := sent(t, s, 0, entry("user", "bob", nil)).GetStatuses()[0].GetLimitRemaining(); left != 992 {
		t.Errorf("%d left, want 992: 1,000 less the cost of 7 and this request", left)
	}
}

// The return of a slot goes on after the answer to its settle-done, which the proxy may not repeat.
func TestAReturnIsRepeatedUntilTheStoreDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &failing{Store: memory.New(memory.Config{})}
		repeats := stores.NewUndos(nil, time.Second)
		defer repeats.Close()
		s := slotServer(t, store, repeats)
		reply := sent(t, s, 0, entry("user", "bob", nil))
		store.down.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), -time.Second)
		defer cancel()
		if _, err := send(s, ctx, encoded(0, entry("settle_end", idOf(t, reply), hits(0)))); grpcstatus.Code(err) != codes.Unavailable {
			t.Errorf("the store fails: got %v, want Unavailable", err)
		}
		time.Sleep(time.Second)
		store.down.Store(false)
		time.Sleep(5 * time.Second)
		if left := sent(t, s, 0, entry("user", "bob", hits(0))).GetStatuses()[0].GetLimitRemaining(); left != 2 {
			t.Errorf("%d left when the store is back, want 2", left)
		}
	})
}

// slotServer has one domain. Its limit "user" allows 2 units in flight, and "jobs" is leaky.
func slotServer(t *testing.T, store backend.Store, repeats limiter.Repeater) *Server {
	t.Helper()
	capacity := int64(2)
	limit := compile(t, algorithms.Spec{Kind: algorithms.Concurrency, Capacity: &capacity, Period: hour})
	l := limiter.New(store, limiter.Config{
		IDs: reservation.NewKeys(func() []string { return []string{"secret"} }), Process: 1, Repeater: repeats,
		Now: func() algorithms.Micros { return algorithms.Micros(time.Now().UnixMicro()) },
	})
	slots := snapshot(&limiter.Policy{Name: "user", Limit: limit}, leaky(t))
	slots.Domains["d"].Settle = &limiter.SettleEntries{Key: "settle", End: "settle_end"}
	l.Swap(slots)
	s, _ := newServer(t, l, Options{})
	return s
}

// The id of an answer is also the one that returns its slots if the client does not use the answer.
func TestUnusedAnswersReturnTheirSlots(t *testing.T) {
	s := slotServer(t, memory.New(memory.Config{}), nil)
	check := func(hits uint64) (id, answered string, left uint32) {
		t.Helper()
		b := s.NewBatch()
		b.Add(encoded(0, entry("user", "bob", wrapperspb.UInt64(hits))), time.Now(), 0, nil, nil)
		b.Submit(time.Time{}, nil, func() {})
		out, err := b.Answer(nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		id = b.Slots(0)
		r := &rls.RateLimitResponse{}
		if err := proto.Unmarshal(out, r); err != nil {
			t.Fatal(err)
		}
		return id, idOf(t, r), r.GetStatuses()[0].GetLimitRemaining()
	}
	first, answered, left := check(1)
	if first == "" || first != answered || left != 1 {
		t.Fatalf("got the slots %q, the id %q and %d left; want the same id twice and 1", first, answered, left)
	}
	if id, answered, _ := check(0); id != "" || answered != limiter.None {
		t.Errorf("a dry run: got the slots %q and the id %q", id, answered)
	}
	check(1)
	if id, answered, _ := check(1); id != "" || answered != limiter.None {
		t.Errorf("a denial: got the slots %q and the id %q", id, answered)
	}
	s.Unused(first)
	s.Unused(first)
	if _, _, left := check(0); left != 1 {
		t.Errorf("%d left after a reset, want 1", left)
	}
}

// A client of /json that leaves while its answer is delayed returns its slots too. One that gets its answer keeps them.
func TestAClientOfJSONThatLeavesReturnsItsSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slotServer(t, memory.New(memory.Config{}), nil)
		body := []byte(`{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"bob"}]},{"entries":[{"key":"jobs","value":"x"}]}]}`)
		leaves, leave := context.WithTimeout(t.Context(), time.Second/2)
		defer leave()
		for _, c := range []struct {
			ctx  context.Context
			code int
		}{{t.Context(), 200}, {leaves, 503}} {
			if code, text := s.AnswerJSON(c.ctx, body, false); code != c.code {
				t.Errorf("got %d %s; want status %d", code, text, c.code)
			}
		}
		if left := sent(t, s, 0, entry("user", "bob", hits(0))).GetStatuses()[0].GetLimitRemaining(); left != 1 {
			t.Errorf("%d left, want 1", left)
		}
	})
}
