package backend_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// patient is a Store that can be broken, and counts who asks.
type patient struct {
	broken       atomic.Bool
	takes        time.Duration
	asked        atomic.Int64
	inside, most atomic.Int64
}

func (p *patient) Take(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
	p.asked.Add(1)
	if n := p.inside.Add(1); n > p.most.Load() {
		p.most.Store(n)
	}
	defer p.inside.Add(-1)
	time.Sleep(p.takes)
	if p.broken.Load() {
		fail(decisions)
		return
	}
	echo(ctx, charges, decisions)
}

// changes records what a Breaker tells.
type changes struct {
	mu  sync.Mutex
	all string
}

func (c *changes) told(open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if open {
		c.all += "open "
	} else {
		c.all += "closed "
	}
}

func ok(t *testing.T, s backend.Store) bool {
	t.Helper()
	d := take(t.Context(), s, costs(true, 1)...)
	if d[0].Err != nil && !errors.Is(d[0].Err, backend.ErrUnavailable) {
		t.Fatalf("got %+v", d)
	}
	return d[0].Err == nil
}

func TestBreakerOpensAfterFiveFailuresInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, told := &patient{takes: ms}, &changes{}
		s := backend.Breaker(p, told.told)
		for range 3 {
			for _, broken := range []bool{false, true, true, true, true} {
				p.broken.Store(broken)
				if ok(t, s) == broken {
					t.Fatal("it says something else")
				}
			}
		}
		if n := p.asked.Load(); n != 15 || told.all != "" {
			t.Fatalf("asked %d times, told %q: never more than four failures in a row", n, told.all)
		}
	})
}

func TestBreakerOpensAnswersAtOnceAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, told := &patient{takes: 5 * ms}, &changes{}
		s := backend.Breaker(p, told.told)
		p.broken.Store(true)
		for range 5 {
			ok(t, s)
		}
		if p.asked.Load() != 5 || told.all != "open " {
			t.Fatalf("asked %d times, told %q", p.asked.Load(), told.all)
		}
		// Open: all are answered at once, but for one at a time each 200 ms.
		start := time.Now()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for time.Since(start) < time.Second {
					at := time.Now()
					before := p.asked.Load()
					if ok(t, s) {
						t.Error("answered while it is broken")
					}
					if took := time.Since(at); took != 0 && p.asked.Load() == before {
						t.Errorf("not asked, and took %v", took)
					}
					time.Sleep(ms)
				}
			})
		}
		wg.Wait()
		if n := p.asked.Load() - 5; n < 4 || n > 5 {
			t.Errorf("probed %d times in a second", n)
		}
		if p.most.Load() != 1 {
			t.Errorf("%d probes at once", p.most.Load())
		}
		p.broken.Store(false)
		healed := time.Now()
		for !ok(t, s) {
			time.Sleep(ms)
		}
		if took := time.Since(healed); took > 210*ms {
			t.Errorf("closed after %v", took)
		}
		for range 10 {
			if !ok(t, s) {
				t.Error("not closed")
			}
		}
		if told.all != "open closed " {
			t.Errorf("told %q", told.all)
		}
	})
}

func TestBreakerOpensWhenHalfOfTwentyFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &patient{}
		s := backend.Breaker(p, nil)
		for i := range 19 {
			p.broken.Store(i%2 == 0)
			if ok(t, s) != (i%2 == 1) {
				t.Fatalf("open after %d", i)
			}
		}
		p.broken.Store(true)
		ok(t, s) // the twentieth: 11 failed
		p.broken.Store(false)
		if ok(t, s) {
			t.Error("half of twenty failed, and it is asked")
		}
	})
}

// Old failures are forgotten: a Store that fails now and then is not one that fails.
func TestBreakerCountsWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &patient{}
		s := backend.Breaker(p, nil)
		for i := range 300 {
			p.broken.Store(i%3 > 0 && i/15%2 == 0) // 10 of 15, then 15 good ones in the next second
			if ok(t, s) == p.broken.Load() {
				t.Fatalf("open after %d", i)
			}
			time.Sleep(70 * ms)
		}
	})
}

// A Take of many charges fails when one of them could not be decided; a denial, or a bucket for
// which there was no room, is an answer.
func TestBreakerKnowsFailuresFromAnswers(t *testing.T) {
	one := make([]backend.Decision, 2)
	s := backend.Breaker(storeFunc(func(_ context.Context, _ []backend.Charge, decisions []backend.Decision) {
		copy(decisions, one)
	}), nil)
	one[1].Err = backend.ErrFull
	for range 30 {
		if d := take(t.Context(), s, costs(false, 1, 1)...); !errors.Is(d[1].Err, backend.ErrFull) {
			t.Fatalf("open: %+v", d)
		}
	}
	one[1].Err = backend.ErrUnavailable
	opened := false
	for range 40 {
		d := take(t.Context(), s, costs(false, 1, 1)...)
		opened = opened || d[0].Err != nil
	}
	if !opened {
		t.Error("one of two charges fails each time, and it does not open")
	}
}
