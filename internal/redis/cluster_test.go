package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/clock"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// A node that does not know its own address has that at which it was asked. So does one that calls itself loopback,
// because it was asked at another address.
func TestTheLayoutHasTheMasterOfEachSlot(t *testing.T) {
	c := &cluster{clock: clock.System, sendersTo: func(addr string) *serverSenders { return &serverSenders{server: addr} }}
	parts := ""
	for _, part := range []string{
		":0\r\n:0\r\n*4\r\n" + bulks("10.0.0.1") + ":1\r\n" + bulks("id") + "*0\r\n*3\r\n" + bulks("replica") + ":9\r\n" + bulks("id"),
		":2\r\n:5\r\n*3\r\n" + bulks("") + ":2\r\n" + bulks("id"),
		":6\r\n:16382\r\n*3\r\n" + bulks("127.0.0.1") + ":3\r\n" + bulks("id"),
		":16383\r\n:16383\r\n*3\r\n$-1\r\n:4\r\n" + bulks("id"),
	} {
		parts += fmt.Sprintf("*%d\r\n%s", 3+strings.Count(part, "replica"), part)
	}
	r, size, err := parseReply([]byte("*4\r\n"+parts), maxReplyDepth)
	if err != nil || size == 0 {
		t.Fatal(size, err)
	}
	l, err := c.layoutOf("10.0.0.9:7", &r)
	if err != nil {
		t.Fatal(err)
	}
	for slot, want := range map[int]string{0: "10.0.0.1:1", 1: "", 2: "10.0.0.9:2", 5: "10.0.0.9:2", 6: "10.0.0.9:3", 16382: "10.0.0.9:3", 16383: "10.0.0.9:4"} {
		got := ""
		if master := l.master(slot); master != nil {
			got = master.server
		}
		if got != want {
			t.Errorf("slot %d: got the master %q, want %q", slot, got, want)
		}
	}
}

type hookClock struct{ hook func() }

func (c hookClock) Now() time.Time {
	c.hook()
	return time.Date(2150, 1, 1, 0, 0, 0, 0, time.UTC)
}

func (hookClock) AfterFunc(time.Duration, func()) clock.Timer { return time.NewTimer(0) }

// refusingCalls is a transport whose calls fail.
type refusingCalls struct {
	transport

	calls int
}

func (r *refusingCalls) call(context.Context, ...[]any) ([]reply, error) {
	r.calls++
	return nil, notSent("away")
}

// The batch that does not read the layout fails at once.
func TestOneOfTwoBatchesReadsAnUnknownLayout(t *testing.T) {
	m, failed := &refusingCalls{}, 0
	c := &cluster{
		hosts: []string{"a:1"}, below: func(int) int { return 0 }, open: t.Context(), timeout: time.Second,
		sendersTo: func(string) *serverSenders { return &serverSenders{others: m} },
		closed:    true, // so that nothing runs in the background
	}
	submit := func() {
		c.submitUnknown(&backend.Batch{
			Charges: []backend.Charge{{Key: []byte("k")}}, Decisions: make([]backend.Decision, 1), Waits: true,
			Done: func(b *backend.Batch) {
				if errors.Is(b.Decisions[0].Err, backend.ErrUnavailable) {
					failed++
				}
			},
		})
	}
	simultaneous := true
	c.clock = hookClock{func() {
		if simultaneous { // submits the second batch after the first one has found the failed attempt, and before it reads the layout
			simultaneous = false
			submit()
		}
	}}
	c.unknown.Store(&unknown{err: errNoLayout})
	submit()
	if m.calls != 1 || failed != 2 {
		t.Errorf("%d attempts to read the layout, and %d batches failed; want one attempt by two failing batches", m.calls, failed)
	}
}
