package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

type sizes struct{ most atomic.Int64 }

func (s *sizes) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (s *sizes) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		s.observe(cmd)
		return next(ctx, cmd)
	}
}

func (s *sizes) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		for _, cmd := range cmds {
			s.observe(cmd)
		}
		return next(ctx, cmds)
	}
}

func (s *sizes) observe(cmd goredis.Cmder) {
	n := int64(len(cmd.Args()))
	for was := s.most.Load(); n > was && !s.most.CompareAndSwap(was, n); was = s.most.Load() {
	}
}

func many(n, group int) []backend.Charge {
	limit := limitOf(100)
	charges := make([]backend.Charge, n)
	for i := range charges {
		charges[i] = backend.Charge{Key: fmt.Appendf(nil, "many %d", i), Limit: limit, Terms: algorithms.Charge{Cost: 1}, Group: i / group}
	}
	return charges
}

// No call of the script has more charges than a batch or, if that is larger, one group.
func TestManyBucketsAtOnce(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) string{
		"one server": func(t *testing.T) string { t.Helper(); return "redis://" + redistest.Start(t).Addr },
		"a Cluster":  func(t *testing.T) string { t.Helper(); return redistest.StartCluster(t, 3).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var opened atomic.Int32
			s := open(t, Config{URL: start(t), Timeout: 20 * time.Second, Changed: func(string, bool) { opened.Add(1) }})
			hook := &sizes{}
			if s.cluster == nil {
				s.client.AddHook(hook)
			} else if err := s.cluster.client.ForEachMaster(t.Context(), func(_ context.Context, c *goredis.Client) error {
				c.AddHook(hook)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			other := backend.Charge{Key: []byte("other"), Limit: limitOf(100), Terms: algorithms.Charge{Cost: 1}}
			for _, call := range [][]backend.Charge{many(8000, 1), many(8000, 100), many(36_000, 50), many(maxGroup, maxGroup)} {
				batch := max(256, backend.GroupLen(call))
				var wait sync.WaitGroup
				wait.Go(func() {
					if d := takeAll(s, []backend.Charge{other}); !d[0].Allowed {
						t.Errorf("another client: got %+v; want allowed", d)
					}
				})
				decisions := takeAll(s, call)
				wait.Wait()
				for i, d := range decisions {
					if !d.Allowed {
						t.Fatalf("charge %d of %d: got %+v; want allowed", i, len(call), d)
					}
				}
				const others = 6 // the arguments that are not keys
				if n := int(hook.most.Load()); n < 10 || n > batch+others {
					t.Errorf("a call had %d arguments, with batches of %d; want 10 to %v", n, batch, batch+others)
				}
			}
			for range 10 {
				for i, d := range takeAll(s, many(8000, 8000)) {
					if !errors.Is(d.Err, backend.ErrTooLarge) || errors.Is(d.Err, backend.ErrUnavailable) {
						t.Fatalf("charge %d of a group that is too large: got %+v; want an ErrTooLarge that is not an ErrUnavailable", i, d)
					}
				}
				if d := takeAll(s, []backend.Charge{other}); !d[0].Allowed {
					t.Fatalf("another client: got %+v; want allowed", d)
				}
			}
			if n := opened.Load(); n != 0 {
				t.Errorf("the circuit breaker changed %d times; want 0", n)
			}
		})
	}
}

// A group that is larger than a batch may take longer than the timeout of other calls.
func TestLargeGroupsUseAnotherSender(t *testing.T) {
	var usual, long int
	count := func(n *int) *sender {
		return newSender(time.Minute, func(_ context.Context, c *call) error {
			*n += c.charges
			return nil
		})
	}
	s := &serverSenders{count(&usual), count(&long)}
	takeAll(s, many(1, 1))
	takeAll(s, many(1000, 256))
	if usual != 1001 || long != 0 {
		t.Errorf("small groups: %d charges in the usual sender, %d in the long one; want 1001 and 0", usual, long)
	}
	takeAll(s, many(257, 257))
	if usual != 1001 || long != 257 {
		t.Errorf("a large group: %d charges in the usual sender, %d in the long one; want 1001 and 257", usual, long)
	}
	mixture := slices.Concat(many(3, 1), many(300, 300), many(5, 1), many(300, 300))
	for i := 303; i < 308; i++ { // adjacent groups must have different numbers
		mixture[i].Group += 10
	}
	takeAll(s, mixture)
	if usual != 1009 || long != 857 {
		t.Errorf("a mixture: %d charges in the usual sender, %d in the long one; want 1009 and 857", usual, long)
	}
}
