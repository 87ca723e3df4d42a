package accesslog_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/accesslog"
	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const limits = `
domain: d
limits:
  uploads: {algorithm: concurrency, capacity: 2, ttl: 1h}
  short: {algorithm: concurrency, capacity: 2, ttl: 1s}
  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: 100}}
descriptors:
  - {key: tenant, limit: uploads}
  - {key: short, limit: short}
  - {key: user, limit: tokens}
`

func newLimiter(t *testing.T, secret string) *limiter.Limiter {
	t.Helper()
	snapshot, problems := config.Compile([]config.File{{Name: "limits.yaml", Data: []byte(limits)}}, config.Options{})
	if problems.Bad() {
		t.Fatal(problems)
	}
	now := func() algorithms.Micros { return algorithms.Micros(time.Now().UnixMicro()) }
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{IDs: reservation.NewKeys(func() []string { return []string{secret} }), Now: now, Process: 1})
	l.Swap(snapshot)
	return l
}

// ask sends a descriptor, and returns the remaining units and the id.
func ask(t *testing.T, l *limiter.Limiter, key string, cost int64) (remaining int64, id string) {
	t.Helper()
	c := &limiter.Call{}
	c.Request.Domain, c.Returns = "d", true
	d := c.AddDescriptor()
	d.Entries, d.Cost, d.Explicit = []descriptors.Entry{{Key: key, Value: "bob"}}, cost, true
	if err := l.Check(t.Context(), c); err != nil || c.Denied {
		t.Fatalf("%s: denied %v, error %v", key, c.Denied, err)
	}
	return c.Results[0].Decision.Remaining, string(c.AppendID(nil))
}

// Any process of this machine can send lines. A line without the id of a slot that is occupied changes nothing, and is
// counted.
func TestOnlyTheIDOfASlotReturnsIt(t *testing.T) {
	l := newLimiter(t, "secret")
	lines, err := accesslog.Listen("udp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- lines.Serve(func(id string) { l.ReturnSlots(id, limiter.DoorLog) }) }()
	defer func() {
		lines.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	sender, err := net.Dial("udp", lines.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	ask(t, l, "tenant", 1)
	_, mine := ask(t, l, "tenant", 1)
	_, tokens := ask(t, l, "user", 100)
	_, expired := ask(t, l, "short", 1)
	_, foreign := ask(t, newLimiter(t, "another secret"), "tenant", 1)
	time.Sleep(1100 * time.Millisecond) // expired is
	for _, test := range []struct {
		name, line string
		outcome    limiter.SlotOutcome
		free       int64 // of the 2 slots
	}{
		{"no id", "GET / 200", limiter.SlotBadID, 0},
		{"the id of another process", foreign, limiter.SlotBadID, 0},
		{"an id of another limit", tokens, limiter.SlotBadID, 0},
		{"a changed id", "A" + mine[:len(mine)-1], limiter.SlotBadID, 0},
		{"a part of an id", mine[1:], limiter.SlotBadID, 0},
		{"a very long line", strings.Repeat("x", 60_000), limiter.SlotBadID, 0},
		{"a slot that has expired", expired, limiter.SlotGone, 0},
		{"the id", mine, limiter.SlotReturned, 1},
		{"the id again", mine, limiter.SlotGone, 1},
	} {
		before := l.SlotCounts().Ended[limiter.DoorLog][test.outcome]
		if _, err := sender.Write([]byte(test.line + "\n")); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); l.SlotCounts().Ended[limiter.DoorLog][test.outcome] == before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not counted as %s", test.name, test.outcome)
			}
		}
		if free, _ := ask(t, l, "tenant", 0); free != test.free {
			t.Errorf("%s: %d slots are free, want %d", test.name, free, test.free)
		}
	}
}
