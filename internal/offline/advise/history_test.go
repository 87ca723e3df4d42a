package advise

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// requestsAt adds one request of a client at each time, in seconds after start. It returns the client.
func requestsAt(h *History, client string, seconds ...int64) *Client {
	for _, at := range seconds {
		addRequests(h, client, start+algorithms.Micros(at)*second, 1)
	}
	return h.clients[client]
}

func TestRequestsAreKeptExactly(t *testing.T) {
	type request struct {
		at   algorithms.Micros
		cost int64
	}
	rapid.Check(t, func(t *rapid.T) {
		h := NewMemory(0).New()
		c, added := h.Client([]byte("k"))
		if _, again := h.Client([]byte("k")); !added || again {
			t.Fatalf("the client is new: %t, and later: %t; want true, false", added, again)
		}
		var want, got []request
		now := start
		for range rapid.IntRange(1, 20).Draw(t, "requests") {
			now += algorithms.Micros(rapid.Int64Range(0, 1<<40).Draw(t, "pause"))
			want = append(want, request{now, rapid.OneOf(rapid.Just[int64](1), rapid.Int64()).Draw(t, "cost")})
			h.Add(c, now, want[len(want)-1].cost)
		}
		for r := c.cursor(); ; {
			at, cost, more := r.next()
			if !more {
				break
			}
			got = append(got, request{at, cost})
		}
		if !slices.Equal(got, want) || c.first != want[0].at || c.last != now || c.Requests != int64(len(want)) {
			t.Fatalf("got %v, from %d to %d; want %v", got, c.first, c.last, want)
		}
	})
}

// A client that is dropped with its first request may leave a few bytes counted, here at most 50 for each level.
func TestMemoryInUseIsCounted(t *testing.T) {
	const most = 1 << 16
	memory := NewMemory(most)
	histories := []*History{memory.New(), memory.New()}
	var dropped string
	for i := range 2000 {
		for n, h := range histories {
			addRequests(h, fmt.Sprintf("client %d of %d", i, n), start, 1+i%7)
		}
	}
	used := int64(0)
	for _, h := range histories {
		bytes := int64(0)
		for key, c := range h.clients {
			bytes += clientSize + int64(len(key)+len(c.Shown)+cap(c.times))
		}
		if over := h.bytes - bytes; over < 0 || over > 50*int64(h.level) || h.level == 0 || len(h.clients) < 32 {
			t.Errorf("a history with %d clients at level %d counts %d bytes; want %d to %d, a level above 0, and at least 32 clients", len(h.clients), h.level, h.bytes, bytes, bytes+50*int64(h.level))
		}
		used += h.bytes
	}
	if memory.used != used || used > most {
		t.Errorf("%d bytes are counted, want %d, and at most %d", memory.used, used, most)
	}
	for i := range 100 {
		if key := fmt.Sprint("other ", i); dropped == "" {
			if c, added := histories[0].Client([]byte(key)); c == nil && !added {
				dropped = key
			}
		}
	}
	if dropped == "" {
		t.Error("all of 100 new clients are in the sample; want some left out")
	}
}

func TestTheOnlyClientIsKept(t *testing.T) {
	for _, key := range []string{"a", "b", "c", "d"} {
		h := NewMemory(100).New()
		addRequests(h, key, start, 1)
		if len(h.clients) != 1 || h.level != 0 {
			t.Errorf("%d clients at level %d; want one at level 0", len(h.clients), h.level)
		}
	}
}

func TestTheLargestHistoryDropsClients(t *testing.T) {
	const most = 1 << 16
	memory := NewMemory(most)
	large, small := memory.New(), memory.New()
	for i := 0; memory.used < most-2*clientSize; i++ {
		addRequests(large, fmt.Sprint("client ", i), start, 1)
	}
	for i := range 20 {
		addRequests(small, fmt.Sprint("client ", i), start, 1)
	}
	if small.level != 0 || len(small.clients) != 20 || large.level == 0 || memory.used > most {
		t.Errorf("the small history has %d clients at level %d, the large one level %d, %d bytes in total; want 20 at level 0, more than 0, and at most %d bytes",
			len(small.clients), small.level, large.level, memory.used, most)
	}
}

// An abuser does not displace the client of another limit.
func TestMemoryIsBounded(t *testing.T) {
	const clients, most = 20_000, 1 << 20
	memory := NewMemory(most)
	h, other := memory.New(), memory.New()
	addRequests(other, "the only one", start, 3)
	needs := make([]int, clients)
	for i := range needs {
		needs[i] = 1 + i*i/(clients*clients/100) // between 1 and 100; high numbers are rarer
		addRequests(h, fmt.Sprint("client ", i), start+algorithms.Micros(i)*second, needs[i])
	}
	for range 1000 {
		addRequests(h, "abuser", start+clients*second, 300)
	}
	if memory.used > most {
		t.Errorf("%d bytes are used, want at most %d", memory.used, most)
	}
	a := adviceOn(t, h, policyOf(t, perMinute), 0.05)
	if a.Every == 1 || a.Clients < 1000 || math.Abs(float64(a.About)/clients-1) > 0.1 {
		t.Errorf("%d clients are kept, 1 of %d, about %d in total; want a sample of at least 1000, and about %d in total", a.Clients, a.Every, a.About, clients)
	}
	denied := 0
	for _, n := range needs {
		if int64(n) > a.Suggested.N {
			denied++
		}
	}
	if share := float64(denied) / clients; share > 0.05 || share < 0.05-2*a.Error-0.01 || a.Error == 0 {
		t.Errorf("%d denies requests of %.4f of all clients; want at most 0.05, and not much less; the error is %.4f", a.Suggested.N, share, a.Error)
	}
	if len(other.clients) != 1 {
		t.Error("the history of the other limit lost its client")
	}
}

// The requests beyond the abuser's part of the memory are only counted.
func TestAbuserIsCutOff(t *testing.T) {
	memory := NewMemory(1 << 16)
	h := memory.New()
	addRequests(h, "a", start, 1)
	addRequests(h, "abuser", start, 100_000)
	a := adviceOn(t, h, policyOf(t, perMinute), 0.5)
	if memory.used > 1<<16 || a.Clients != 2 || a.Missed == 0 || a.Requests != 100_001 {
		t.Errorf("%d bytes, %d clients, %d of %d requests left out; want at most %d bytes, 2 clients, some left out of 100001", memory.used, a.Clients, a.Missed, a.Requests, 1<<16)
	}
	if a.Suggested.N != 1 || a.Suggested.Clients != 1 {
		t.Errorf("suggested %+v; want 1, which denies one client", a.Suggested)
	}
}
