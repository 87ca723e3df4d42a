package grpcapi

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

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
	message, err := proto.Marshal(rlstest.Request("d", "k=v"))
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
		descriptors, entries, length int
		kept                         bool
	}{
		{40, 1, 1000, false}, {2, 1, 1000, true}, {40, 1, 1000, false}, {1, 1, 1000, true}, {1, 1, 33_000, false},
		{32, 8, 1, true}, {33, 1, 1, false}, {32, 9, 1, false}, // more than 32 descriptors or 256 entries are many
	} {
		one := strings.Repeat(",none="+strings.Repeat("v", c.length), c.entries)[1:]
		message, err := proto.Marshal(rlstest.Request("d", slices.Repeat([]string{one}, c.descriptors)...))
		if err != nil {
			t.Fatal(err)
		}
		batch.Add(message, time.Now(), 0, nil, nil)
		batch.Reset()
		if n := cap(batch.requests[0].limits); (n > 0) != c.kept || n > 32 {
			t.Errorf("after a request with %d descriptors of %d entries of %d bytes there is room for %d; want room for at most 32, and none after a large request", c.descriptors, c.entries, c.length, n)
		}
	}
	most := 32 << 10 / int(unsafe.Sizeof(limiter.Result{}))
	for _, c := range []struct {
		results, bytes int
		large          bool
	}{{most, 0, false}, {most + 1, 0, true}, {0, 32 << 10, false}, {0, 32<<10 + 1, true}} {
		x := exchange{wire: make([]byte, c.bytes)}
		x.call.Results = make([]limiter.Result, 0, c.results)
		if x.large() != c.large {
			t.Errorf("room for %d results, %d bytes: large %t, want %t", c.results, c.bytes, !c.large, c.large)
		}
	}
}

// A batch is used three times. Each time it must charge only its own requests, and know only those that need no store.
func TestARequestThatIsKnownNeedsNoStore(t *testing.T) {
	store := recordingStore{}
	l := limiter.New(&store, limiter.Config{})
	l.Swap(snapshot(&limiter.Policy{Name: "k", Limit: compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 9, Period: hour})}))
	s, _ := newServer(t, l, Options{})
	batch, done := s.NewBatch(), 0
	var canceled atomic.Bool
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
			batch.Add(message, time.Now(), left, &canceled, nil)
			want = append(want, key != "k")
		}
		batch.Submit(time.Time{}, nil, func() { done++ })
		for i := range list {
			known = append(known, batch.Known(i))
		}
		if store.batch.Charges[0].Canceled != &canceled {
			t.Error("the store does not learn that the client cancels the request")
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

func TestADenialOfATooLargeMessageIsCounted(t *testing.T) {
	s, counted := newServer(t, newLimiter(), Options{})
	r, err := response(s.Denial())
	s.Oversized()
	if err != nil || r.GetOverallCode() != over || counted.count(TooMuch) != 1 || counted.count("more bytes") != 1 {
		t.Errorf("got %v, %v; counted %d as TooMuch and %d as more bytes; want OVER_LIMIT, counted once as each", r, err, counted.count(TooMuch), counted.count("more bytes"))
	}
}
