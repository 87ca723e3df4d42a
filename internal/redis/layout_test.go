package redis_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/clock"
	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

type fixedClock struct{}

func (fixedClock) Now() time.Time { return time.Date(2150, 1, 1, 0, 0, 0, 0, time.UTC) }

func (fixedClock) AfterFunc(time.Duration, func()) clock.Timer { return time.NewTimer(0) }

// A first request may not have enough time to wait for the layout of the Cluster. After the layout has been
// read in the background, the next request uses it without a further wait.
func TestALayoutThatWasReadInTheBackgroundNeedsNoWait(t *testing.T) {
	questions := 0
	machine := &redis.Machine{
		Clock: fixedClock{}, Go: func(f func()) { f() }, Random: func([]byte) {}, Below: func(int) int { return 0 },
		Call: func(_ context.Context, server string, commands []redis.Command) {
			c := &commands[0]
			if c.Args[0] != "cluster" {
				c.Err = redis.ErrorReply("ERR reached " + server)
				return
			}
			if questions++; questions == 1 {
				c.Err = context.DeadlineExceeded
				return
			}
			c.Reply = []redis.Slots{{From: 0, To: 16383, Addr: "r1:6379"}}
		},
	}
	store, err := redis.Open(redis.Config{URL: "redis+cluster://r0", Machine: machine})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: algorithms.Second})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"no node", "reached r1:6379"} {
		var decisions [1]backend.Decision
		charge := backend.Charge{Key: []byte("k"), Limit: &limit, Terms: algorithms.Charge{Cost: 1}}
		backend.Take(t.Context(), store, []backend.Charge{charge}, decisions[:])
		if err := decisions[0].Err; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the answer is %v, not %q", err, want)
		}
	}
}
