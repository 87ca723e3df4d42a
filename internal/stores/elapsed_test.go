package stores_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// suspendable has the clocks of a machine that can be suspended. While it is suspended, the monotonic clock
// stands still. Both clocks follow the time of a synctest bubble otherwise.
type suspendable struct {
	began     time.Time
	suspended atomic.Int64 // ns by which the monotonic clock is behind
	ahead     atomic.Int64 // ns by which the wall clock was changed
}

func (s *suspendable) clocks() (monotonic, wall time.Duration) {
	since := time.Since(s.began)
	return since - time.Duration(s.suspended.Load()), since + time.Duration(s.ahead.Load())
}

func (s *suspendable) suspend(d time.Duration) {
	time.Sleep(d)
	s.suspended.Add(int64(d))
}

// A machine that was suspended must not serve leased units of a window that has ended.
func TestALeaseEndsWhileTheMachineIsSuspended(t *testing.T) {
	for name, before := range map[string]func(*suspendable){
		"plain":                         func(*suspendable) {},
		"a wall clock set back before":  func(m *suspendable) { m.ahead.Add(-int64(time.Hour)) },
		"a wall clock set ahead before": func(m *suspendable) { m.ahead.Add(int64(time.Hour)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				machine := &suspendable{began: time.Now()}
				store := memory.New(memory.Config{Clock: storetest.Times(wall)})
				s := stores.Cache(store, stores.CacheConfig{Clocks: machine.clocks})
				before(machine)
				limit := fixed(t, 1000, 10*algorithms.Second)
				c := leased(limit, "a", 1, 500)
				warm(t, s, c)
				if s.Stats().Leased == 0 {
					t.Fatal("no units are leased")
				}
				start := time.Now()
				machine.suspend(10 * time.Second) // the next window has started
				take(t.Context(), store, of(limit, "a", limit.Capacity))
				if d := take(t.Context(), s, c)[0]; d.Allowed {
					t.Errorf("%v later, while the monotonic clock stood still, a unit of the previous window was served: %+v; want denied", time.Since(start), d)
				}
			})
		})
	}
}
