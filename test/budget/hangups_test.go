package budget

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/estimate"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// The numbers of the configuration in docs/howto/limit-llm-tokens.md.
const (
	budget       = 100_000
	first, least = 1500, 375
	inTenSeconds = budget + budget/6 // a full bucket, and what it refills in ten seconds
)

// guide is a sidecar with the configuration of docs/howto/limit-llm-tokens.md and a virtual clock.
type guide struct {
	*limiter.Limiter
	t   *testing.T
	now time.Time
}

func newGuide(t *testing.T) *guide {
	t.Helper()
	page, err := os.ReadFile("../../docs/howto/limit-llm-tokens.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml")
	block, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("the guide has no configuration")
	}
	snapshot, problems := config.Compile([]config.File{{Name: "limits.yaml", Data: []byte(strings.ReplaceAll(block, "\n   ", "\n"))}}, config.Options{})
	if problems.Bad() {
		t.Fatal(problems)
	}
	g := &guide{t: t, now: time.Unix(1_767_225_600, 0)}
	clock := func() time.Time { return g.now }
	g.Limiter = limiter.New(memory.New(memory.Config{Clock: clock}), limiter.Config{
		IDs: reservation.NewKeys(func() []string { return []string{"secret"} }), Estimates: &estimate.Estimates{},
		Now: func() algorithms.Micros { return algorithms.Micros(g.now.UnixMicro()) },
	})
	g.Swap(snapshot)
	return g
}

// send sends a request with one descriptor, as Envoy does. With hits below 0, the descriptor has none.
func (g *guide) send(key, value string, hits int64) *limiter.Call {
	g.t.Helper()
	c := &limiter.Call{}
	c.Request.Domain = "ai"
	d := c.AddDescriptor()
	d.Entries, d.Cost, d.Explicit = []descriptors.Entry{{Key: key, Value: value}}, max(1, hits), hits >= 0
	if hits >= 0 {
		d.Cost = hits
	}
	if err := g.Check(g.t.Context(), c); err != nil {
		g.t.Fatal(err)
	}
	return c
}

// start returns false if the request is denied.
func (g *guide) start(user string) (id string, ok bool) {
	g.t.Helper()
	c := g.send("user", user, -1)
	return string(c.AppendID(nil)), !c.Denied
}

// hangUp is what Envoy sends for a call whose answer had no usage.
func (g *guide) hangUp(id string) { g.send("settle_end", id, 0) }

func (g *guide) cheap(user string) {
	g.t.Helper()
	id, ok := g.start(user)
	if !ok {
		g.t.Fatalf("%s: a cheap call is denied", user)
	}
	g.send("settle", id, 1)
}

// A client that makes cheap calls in a quiet hour, and then hangs up before each usage report, gets no more calls than
// its budget has for calls of the first estimate.
func TestAClientThatHangsUpKeepsTheBudget(t *testing.T) {
	for _, keys := range []int{1, 4, 40} {
		t.Run(fmt.Sprintf("with %d keys", keys), func(t *testing.T) {
			g := newGuide(t)
			for i := range max(20, 2*keys) { // quiet hours, in which only this client makes calls
				g.cheap(fmt.Sprintf("eve %d", i%keys))
				g.now = g.now.Add(time.Second)
			}
			calls := 0
			for range 2000 {
				if id, ok := g.start("eve 0"); ok {
					g.hangUp(id)
					calls++
				}
				g.now = g.now.Add(5 * time.Millisecond)
			}
			t.Logf("%d calls in 10 s", calls)
			if most := (inTenSeconds + first - least) / first; calls > most { // the last call needs only the least estimate
				t.Errorf("%d calls in 10 s without a usage report, want at most %d", calls, most)
			}
		})
	}
}

// With many keys, a client can make the estimate as low as least. So it can have as many calls in flight as the budget
// has reservations of that size. When they end, each is charged the first estimate.
func TestParallelCallsThatHangUpReserveTheLeastEstimate(t *testing.T) {
	g := newGuide(t)
	for i := range 200 {
		g.cheap(fmt.Sprintf("eve %d", i))
		g.now = g.now.Add(time.Second)
	}
	var open []string
	for id, ok := g.start("mallory"); ok; id, ok = g.start("mallory") {
		open = append(open, id)
	}
	if most := budget / least; len(open) > most {
		t.Errorf("%d calls in flight, want at most %d", len(open), most)
	}
	for _, id := range open {
		g.hangUp(id)
	}
	g.now = g.now.Add(time.Minute)
	if _, ok := g.start("mallory"); ok {
		t.Error("allowed after a minute, want denied until the debt of the calls has refilled")
	}
}
