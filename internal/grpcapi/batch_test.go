package grpcapi

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/testkit/rlstest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// The configuration changes between two requests. Each answer must show the limit that its request matched,
// although the two limits have the same name and the same place in the cache of encoded limits.
func TestABatchOverASwapShowsBothLimits(t *testing.T) {
	hourly := func(rate int64) *limiter.Policy {
		return &limiter.Policy{Name: "k", Limit: compile(t, algorithms.Spec{Kind: algorithms.SlidingLog, Rate: rate, Period: hour})}
	}
	l := newLimiter(hourly(5))
	s, _ := newServer(t, l, Options{})
	batch := s.NewBatch()
	message, err := proto.Marshal(rlstest.Request("d", rlstest.Descriptor("k=v")))
	if err != nil {
		t.Fatal(err)
	}
	for _, after := range []*limiter.Snapshot{snapshot(hourly(9)), snapshot(hourly(7))} {
		batch.Reset()
		first := l.Current().Policies[0].Limit.Rate
		batch.Add(message, time.Now(), 0, nil, nil)
		l.Swap(after)
		batch.Add(message, time.Now(), 0, nil, nil)
		submit(batch)
		for i, want := range []int64{first, after.Policies[0].Limit.Rate} {
			data, err := batch.Answer(nil, i)
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

// broken is an Observer that panics at the denial of a request, and IDs that panic.
type broken struct{ limiter.IDs }

func (broken) Swapped(*limiter.Snapshot) {}

func (broken) Observe(c *limiter.Call) {
	if c.Denied {
		panic("bug")
	}
}

func (broken) Open(string, *limiter.Reserved) bool { panic("bug") }

// The caller of a Batch recovers from a panic in Add or Answer. That request must be denied, and the others answered.
func TestAPanicDeniesOneRequestOfABatch(t *testing.T) {
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{Observer: broken{}, IDs: broken{}, Now: func() algorithms.Micros { return 1 }})
	s := snapshot(&limiter.Policy{Name: "k", Limit: compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: hour})})
	s.Domains["d"].Settle = &limiter.SettleEntries{Key: "settle", End: "settle_end"}
	l.Swap(s)
	server, _ := newServer(t, l, Options{})
	batch := server.NewBatch()
	panics := func(f func()) (panicked bool) {
		defer func() { panicked = recover() != nil }()
		f()
		return false
	}
	for round, first := range []rls.RateLimitResponse_Code{ok, over} {
		for i, key := range []string{"settle", "k", "k", "none"} {
			if got := panics(func() { batch.Add(request(key), time.Now(), 0, nil, nil) }); got != (i == 0) {
				t.Errorf("%s: Add panics: %t", key, got)
			}
		}
		submit(batch)
		for i, want := range []rls.RateLimitResponse_Code{over, first, over, ok} {
			var data []byte
			if panics(func() { data, _ = batch.Answer(nil, i) }) {
				data = server.Denial()
			}
			if r, err := response(data); err != nil || r.GetOverallCode() != want {
				t.Errorf("round %d, request %d: got %v, %v; want %v", round, i, r, err, want)
			}
		}
		batch.Reset()
	}
}

func TestALargeRequestKeepsNoMemory(t *testing.T) {
	l := newLimiter(&limiter.Policy{Name: "k", Limit: compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 9, Period: hour})})
	s, _ := newServer(t, l, Options{})
	batch := s.NewBatch()
	for _, c := range []struct {
		descriptors, length int
		kept                bool
	}{{40, 1000, false}, {2, 1000, true}, {40, 1000, false}, {1, 1000, true}, {1, 100_000, false}} {
		var list []*ratelimit.RateLimitDescriptor
		for range c.descriptors {
			list = append(list, rlstest.Descriptor("none="+strings.Repeat("v", c.length)))
		}
		message, err := proto.Marshal(rlstest.Request("d", list...))
		if err != nil {
			t.Fatal(err)
		}
		batch.Add(message, time.Now(), 0, nil, nil)
		batch.Reset()
		if n := cap(batch.requests[0].limits); (n > 0) != c.kept || n > 32 {
			t.Errorf("after a request with %d descriptors of %d bytes there is room for %d; want room for at most 32, and none after a large request", c.descriptors, c.length, n)
		}
	}
}

func TestTheStoreSeesThatARequestIsCanceled(t *testing.T) {
	store := recordingStore{}
	l := limiter.New(&store, limiter.Config{})
	l.Swap(snapshot(&limiter.Policy{Name: "k", Limit: compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 9, Period: hour})}))
	s, _ := newServer(t, l, Options{})
	batch := s.NewBatch()
	var canceled atomic.Bool
	batch.Add(request("k"), time.Now(), 0, &canceled, nil)
	batch.Submit(time.Time{}, nil, func() {})
	if c := &store.batch.Charges[0]; c.Canceled == nil || c.Canceled.Load() {
		t.Fatalf("got %+v; want a charge with Canceled set and false", c)
	}
	if canceled.Store(true); !store.batch.Charges[0].Canceled.Load() {
		t.Error("the store does not know that the client canceled the request")
	}
	store.batch.Fail(backend.ErrUnavailable)
}

// A batch is used three times. Each time it must charge only its own requests, and know only those that need no store.
func TestARequestThatIsKnownNeedsNoStore(t *testing.T) {
	store := recordingStore{}
	l := limiter.New(&store, limiter.Config{})
	l.Swap(snapshot(&limiter.Policy{Name: "k", Limit: compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 9, Period: hour})}))
	s, _ := newServer(t, l, Options{})
	batch, done := s.NewBatch(), 0
	for round, list := range [][]string{{"k", "unlimited", "", "late"}, {"", "k", "late", "unlimited"}, {"late", "", "unlimited", "k"}} {
		var want, known []bool
		for _, key := range list {
			message, left := request(key), time.Duration(0)
			switch key {
			case "":
				message = nil
			case "late": // the deadline has passed
				message, left = request("k"), -1
			}
			batch.Add(message, time.Now(), left, nil, nil)
			want = append(want, key != "k")
		}
		batch.Submit(time.Time{}, nil, func() { done++ })
		for i := range list {
			known = append(known, batch.Known(i))
		}
		if !slices.Equal(known, want) || done != round || len(store.batch.Charges) != 1 || batch.used != 4 || batch.weight != 3 {
			t.Errorf("known: got %v, want %v; done was called %d times, want %d; %d charges, want 1; %d requests of weight %d, want 4 of weight 3", known, want, done, round, len(store.batch.Charges), batch.used, batch.weight)
		}
		if data, err := batch.Answer(nil, slices.Index(list, "unlimited")); err != nil || len(data) == 0 {
			t.Errorf("got %x %v; want an encoded answer", data, err)
		}
		store.batch.Decisions[0].Allowed = true
		store.batch.SetKnown(0, 1)
		store.batch.Finish()
		data, err := batch.Answer(nil, slices.Index(list, "k"))
		if r, _ := response(data); err != nil || r.GetOverallCode() != ok || done != round+1 {
			t.Errorf("got %v, %v, done called %d times; want OK and %d calls", r, err, done, round+1)
		}
		batch.Reset()
	}
}

type recordingStore struct{ batch *backend.Batch }

func (s *recordingStore) Submit(b *backend.Batch) { s.batch = b }

// The weight of a request is the larger one of its numbers of charges and descriptors, whatever was added before it.
func TestTheWeightOfABatchIsASum(t *testing.T) {
	var policies []*limiter.Policy
	for _, kind := range []algorithms.Kind{algorithms.TokenBucket, algorithms.FixedWindow, algorithms.SlidingLog} {
		policies = append(policies, &limiter.Policy{Name: "k", Limit: compile(t, algorithms.Spec{Kind: kind, Rate: 9, Period: hour})})
	}
	l := newLimiter(policies...)
	s, _ := newServer(t, l, Options{})
	batch, want := s.NewBatch(), 0
	for _, c := range []struct {
		keys   []string
		weight int
	}{{[]string{"k"}, 3}, {[]string{"none", "none"}, 2}, {[]string{"k", "none", "none"}, 3}, {[]string{"k", "none", "none", "none"}, 4}, {nil, 0}} {
		batch.Add(request(c.keys...), time.Now(), 0, nil, nil)
		if want += c.weight; batch.weight != want {
			t.Errorf("after a request for %v the weight is %d, want %d", c.keys, batch.weight, want)
		}
	}
}

func TestTheMemoryThatARequestOfABatchMayKeep(t *testing.T) {
	empty, entry := &ratelimit.RateLimitDescriptor{}, &ratelimit.RateLimitDescriptor_Entry{}
	entries := func(n int) (list []*ratelimit.RateLimitDescriptor) {
		for ; n > 0; n -= DefaultEntries {
			list = append(list, &ratelimit.RateLimitDescriptor{Entries: slices.Repeat([]*ratelimit.RateLimitDescriptor_Entry{entry}, min(n, DefaultEntries))})
		}
		return list
	}
	text := func(n int) *rls.RateLimitRequest { return &rls.RateLimitRequest{Domain: strings.Repeat("d", n-4)} }
	most := 32 << 10 / int(unsafe.Sizeof(limiter.Result{}))
	for _, c := range []struct {
		name    string
		request *rls.RateLimitRequest
		buffers int // the number of results for which there is room
		large   bool
	}{
		{"32 descriptors", &rls.RateLimitRequest{Descriptors: slices.Repeat([]*ratelimit.RateLimitDescriptor{empty}, 32)}, 0, false},
		{"33 descriptors", &rls.RateLimitRequest{Descriptors: slices.Repeat([]*ratelimit.RateLimitDescriptor{empty}, 33)}, 0, true},
		{"256 entries", &rls.RateLimitRequest{Descriptors: entries(256)}, 0, false},
		{"257 entries", &rls.RateLimitRequest{Descriptors: entries(257)}, 0, true},
		{"32 KiB", text(32 << 10), 0, false},
		{"more than 32 KiB", text(32<<10 + 1), 0, true},
		{"buffers of up to 32 KiB", &rls.RateLimitRequest{}, most, false},
		{"larger buffers", &rls.RateLimitRequest{}, most + 1, true},
	} {
		wire, err := proto.Marshal(c.request)
		if err != nil {
			t.Fatal(err)
		}
		x := newExchange()
		x.wire = wire
		if err := x.decode(); err != nil {
			t.Fatal(err)
		}
		x.call = limiter.Call{Request: x.call.Request} // without the buffers of decode
		x.call.Results = make([]limiter.Result, 0, c.buffers)
		if got := x.large(); got != c.large {
			t.Errorf("%s: large is %t, want %t", c.name, got, c.large)
		}
	}
}

func TestADenialOfATooLargeMessageIsCounted(t *testing.T) {
	s, counted := newServer(t, newLimiter(), Options{})
	r, err := response(s.Denial())
	s.Oversized()
	if err != nil || r.GetOverallCode() != over || counted.count(TooMuch) != 1 || counted.count("more bytes") != 1 {
		t.Errorf("got %v, %v; counted %d as TooMuch and %d as more bytes; want OVER_LIMIT, counted once as each", r, err, counted.count(TooMuch), counted.count("more bytes"))
	}
}
