package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func many(n, group int) []backend.Charge {
	limit := limitOf(100)
	charges := make([]backend.Charge, n)
	for i := range charges {
		charges[i] = backend.Charge{Key: fmt.Appendf(nil, "many %d", i), Limit: limit, Terms: algorithms.Charge{Cost: 1}, Group: i / group}
	}
	return charges
}

// The largest batches and groups are decided, and delay no other caller. Larger groups are refused, and cost nothing.
func TestManyBucketsAtOnce(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"server", "cluster"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			var opened atomic.Int32
			c := on(t, form)
			c.Timeout, c.Changed = 20*time.Second, func(string, bool) { opened.Add(1) }
			s := open(t, c)
			other := backend.Charge{Key: []byte("other"), Limit: limitOf(100), Terms: algorithms.Charge{Cost: 1}}
			for _, charges := range [][]backend.Charge{many(8000, 100), many(maxGroup, maxGroup), many(8000, 8000)} {
				tooLarge := backend.GroupLen(charges) > maxGroup
				var wait sync.WaitGroup
				wait.Go(func() {
					if d := takeAll(s, []backend.Charge{other}); !d[0].Allowed {
						t.Errorf("another client: got %+v; want allowed", d)
					}
				})
				decisions := takeAll(s, charges)
				wait.Wait()
				for i, d := range decisions {
					if d.Allowed == tooLarge || tooLarge && (!errors.Is(d.Err, backend.ErrTooLarge) || errors.Is(d.Err, backend.ErrUnavailable)) {
						t.Fatalf("charge %d of %d: got %+v; want allowed, or the error ErrTooLarge, which is no ErrUnavailable: %v", i, len(charges), d, tooLarge)
					}
				}
			}
			if n := opened.Load(); n != 0 {
				t.Errorf("the circuit breaker changed %d times; want 0", n)
			}
		})
	}
}

// Detached batches have a sender of their own, whose timeout is longer.
func TestDetachedBatchesUseAnotherSender(t *testing.T) {
	var usual, long int
	count := func(n *int) *sender {
		return blocking(time.Minute, func(_ context.Context, c *call) error {
			*n += c.charges
			return nil
		})
	}
	s := &serverSenders{usual: count(&usual), long: count(&long)}
	takeAll(s, many(257, 257))
	detached := batchOf(1, 2)
	detached.Detached = true
	<-start(s, detached).done
	if usual != 257 || long != 3 {
		t.Errorf("%d charges in the usual sender, %d in the long one; want 257 and 3", usual, long)
	}
}
