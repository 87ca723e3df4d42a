package load

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

func TestQuantilesAreNear(t *testing.T) {
	var h, other histogram
	dice := rand.New(rand.NewPCG(1, 2))
	var all []time.Duration
	for i := range 10_000 {
		d := time.Duration(dice.Uint64N(1 << (5 + dice.Uint64N(30))))
		all = append(all, d)
		if i%2 == 0 {
			h.add(d)
		} else {
			other.add(d)
		}
	}
	h.merge(&other)
	slices.Sort(all)
	for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 0.999} {
		want, got := all[int(q*10_000)], h.quantile(q)
		if diff := max(want-got, got-want); diff > want/64+1 {
			t.Errorf("quantile %v is %v, want about %v", q, got, want)
		}
	}
	if got := h.quantile(1); got > h.max || h.max != all[len(all)-1] {
		t.Errorf("quantile 1 is %v, max is %v, want %v", got, h.max, all[len(all)-1])
	}
}

func TestARequestHasItsKeyAtEachPlaceholder(t *testing.T) {
	req, err := newRequest("d", []string{"a={},b=x", "c=u{}"})
	if err != nil {
		t.Fatal(err)
	}
	req = req.clone(1, 2, 3)
	req.setKey(42)
	var r rls.RateLimitRequest
	if err := proto.Unmarshal(req.message[3:], &r); err != nil {
		t.Fatal(err)
	}
	const want = `domain:"d" descriptors:{entries:{key:"a" value:"00000042"} entries:{key:"b" value:"x"}} descriptors:{entries:{key:"c" value:"u00000042"}}`
	var wanted rls.RateLimitRequest
	if err := prototext.Unmarshal([]byte(want), &wanted); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(&r, &wanted) {
		t.Errorf("got  %v\nwant %v", &r, &wanted)
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		code rls.RateLimitResponse_Code
		want verdict
	}{
		{rls.RateLimitResponse_OK, ok},
		{rls.RateLimitResponse_OVER_LIMIT, overLimit},
		{rls.RateLimitResponse_UNKNOWN, invalid},
		{17, invalid},
	} {
		message, err := proto.Marshal(&rls.RateLimitResponse{
			OverallCode: c.code,
			Statuses:    []*rls.RateLimitResponse_DescriptorStatus{{Code: rls.RateLimitResponse_OK, LimitRemaining: 3}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := verdictOf(message); got != c.want {
			t.Errorf("%v: %v, want %v", c.code, got, c.want)
		}
		if got := verdictOf(message[:len(message)-1]); got != invalid {
			t.Errorf("%v, cut off: %v, want %v", c.code, got, invalid)
		}
	}
}

func TestConnectionsSendInTurnAtTheRate(t *testing.T) {
	r := &run{Config: Config{Connections: 4, Rate: 1000, Duration: time.Second}, start: time.Now()}
	var all []time.Duration
	for i := range 4 {
		s := newSchedule(r, i)
		for at, more := s.next(); more; at, more = s.next() {
			all = append(all, at)
		}
	}
	slices.Sort(all)
	if len(all) != 1000 {
		t.Fatalf("got %d requests, want 1000", len(all))
	}
	for i, at := range all {
		if at != time.Duration(i)*time.Millisecond {
			t.Fatalf("request %d is due at %v, want %v", i, at, time.Duration(i)*time.Millisecond)
		}
	}
}
