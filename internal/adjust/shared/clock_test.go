package shared_test

import (
	"context"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/adjust/shared"
	"github.com/rlsidecar/rlsidecar/internal/outside"
	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

type testClock struct{ now time.Time }

func (c *testClock) Now() time.Time { return c.now }

func (c *testClock) AfterFunc(time.Duration, func()) outside.Timer { return time.NewTimer(time.Hour) }

// The server has read its clock at some time during the call, which takes 20 ms here. The error is smallest if that is
// taken to be the middle of the call.
func TestTheServersClockIsReadInTheMiddleOfTheCall(t *testing.T) {
	clock := &testClock{time.Date(2150, 1, 1, 0, 0, 0, 0, time.UTC)}
	world := &outside.World{
		Clock: clock, Go: func(f func()) { f() }, Random: func([]byte) {}, Below: func(int) int { return 0 },
		Call: func(_ context.Context, _ string, commands []outside.Command) {
			clock.now = clock.now.Add(20 * time.Millisecond)
			for i := range commands {
				commands[i].Reply = []any{"0", "", "0", "", "", "2000000000", "0"}
			}
		},
	}
	ledger, err := redis.OpenLedger(redis.Config{URL: "redis://r0", Outside: world}, "adjustments")
	if err != nil {
		t.Fatal(err)
	}
	defer ledger.Close()
	k, err := shared.New(shared.Config{Ledger: ledger, Chain: adjust.NewChain(secret), Outside: world})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	clock.now = clock.now.Add(time.Second)
	if got, want := k.Now(), 2_000_000_000*algorithms.Second+1_010_000; got != want {
		t.Errorf("a second after the call, the server's time is %d us, want %d us", got, want)
	}
}
