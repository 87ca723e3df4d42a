package backend_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
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

func ok(t *testing.T, s backend.Taker) bool {
	t.Helper()
	d := take(t.Context(), s, costs(true, 1)...)
	if d[0].Err != nil && !errors.Is(d[0].Err, backend.ErrUnavailable) {
		t.Fatalf("got %+v", d)
	}
	return d[0].Err == nil
}

// TestStallDeniesWhatArrivesDuringIt: a server that answers nothing for x ms denies at most what arrives in
// x + 20 ms, whichever way the calls reach it.
func TestStallDeniesWhatArrivesDuringIt(t *testing.T) {
	const timeout, every = 10 * ms, 200 * time.Microsecond // 5,000 a second
	for _, stall := range []time.Duration{6 * ms, 10 * ms, 15 * ms, 20 * ms, 30 * ms, 60 * ms, 100 * ms, 120 * ms} {
		for _, started := range []bool{false, true} {
			t.Run(fmt.Sprint(stall, " started ", started), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					server := &stalling{from: time.Now().Add(50 * ms), length: stall}
					coalesced := backend.Coalesce(backend.Breaker(server, timeout, nil), backend.CoalesceConfig{Timeout: timeout})
					var s backend.Taker = backend.Blocking(backend.Deadline(backend.Async(coalesced), timeout, ms, nil))
					if started {
						s = storetest.Started(s)
					}
					denied := int(load(t, s, 50*ms+stall+100*ms, every))
					if most := int((stall + 20*ms) / every); denied > most {
						t.Errorf("%d denied, and %d arrived in the stall and 20 ms more", denied, most)
					}
					if stall <= timeout-ms && denied > 0 {
						t.Errorf("%d denied by a stall shorter than the timeout", denied)
					}
				})
			})
		}
	}
}

// stalling answers at once, but nothing from a time on for a while.
type stalling struct {
	from   time.Time
	length time.Duration
}

func (s *stalling) Take(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
	if until := s.from.Add(s.length); !time.Now().Before(s.from) && time.Now().Before(until) {
		select {
		case <-time.After(time.Until(until)):
		case <-ctx.Done():
			fail(decisions)
			return
		}
	}
	echo(ctx, charges, decisions)
}

// load calls s at a steady rate, whether it answers or not, and returns how many calls failed.
func load(t *testing.T, s backend.Taker, length, every time.Duration) (failed int64) {
	t.Helper()
	var n atomic.Int64
	var wg sync.WaitGroup
	for range length / every {
		wg.Go(func() {
			if d := take(t.Context(), s, costs(true, 1)...); d[0].Err != nil {
				n.Add(1)
			}
		})
		time.Sleep(every)
	}
	wg.Wait()
	return n.Load()
}

func TestBreakerOpensAfter100msWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, told := &patient{takes: 5 * ms}, &changes{}
		s := backend.Breaker(p, 10*ms, told.told)
		for range 3 { // one answer in 100 ms keeps it closed
			p.broken.Store(true)
			for range 20 {
				ok(t, s)
			}
			p.broken.Store(false)
			if !ok(t, s) {
				t.Fatal("open after 95 ms of failures")
			}
		}
		if n := p.asked.Load(); n != 63 || told.all != "" {
			t.Fatalf("asked %d times, told %q", n, told.all)
		}
		p.broken.Store(true)
		first := time.Now().Add(5 * ms)
		for told.all == "" {
			ok(t, s)
		}
		if took := time.Since(first); took != 100*ms || told.all != "open " {
			t.Errorf("told %q after %v", told.all, took)
		}
	})
}

// Two answers that are lost at a call a second are no outage.
func TestBreakerNeedsFiveFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, told := &patient{}, &changes{}
		s := backend.Breaker(p, 10*ms, told.told)
		for range 3 {
			p.broken.Store(true)
			for range 4 {
				ok(t, s)
				time.Sleep(time.Second)
			}
			p.broken.Store(false)
			ok(t, s)
		}
		if told.all != "" || p.asked.Load() != 15 {
			t.Errorf("told %q, asked %d times", told.all, p.asked.Load())
		}
	})
}

// An open Breaker answers at once, and sends probes at growing intervals, one at a time.
func TestBreakerProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, told := &patient{takes: 5 * ms}, &changes{}
		s := backend.Breaker(p, 10*ms, told.told)
		p.broken.Store(true)
		for told.all == "" {
			ok(t, s)
		}
		opened, asked := time.Now(), p.asked.Load()
		var probes []time.Duration
		for time.Since(opened) < 1200*ms {
			at, before := time.Now(), p.asked.Load()
			var wg sync.WaitGroup
			for range 8 { // at the same time: one of them is the probe
				wg.Go(func() {
					if ok(t, s) {
						t.Error("answered while it is broken")
					}
				})
			}
			synctest.Wait()
			switch sent := p.asked.Load() - before; sent {
			case 0:
			case 1:
				probes = append(probes, at.Sub(opened))
			default:
				t.Errorf("%d probes at once", sent)
			}
			wg.Wait()
			if took := time.Since(at); p.asked.Load() == before && took != 0 {
				t.Errorf("not sent, and took %v", took)
			}
			time.Sleep(ms)
		}
		// Each probe takes 5 ms, and then the pause begins; the load calls each ms.
		want := []time.Duration{0, 10 + 5, 20 + 5, 40 + 5, 80 + 5, 160 + 5, 200 + 5, 200 + 5, 200 + 5, 200 + 5}
		sum := time.Duration(0)
		for i, at := range probes {
			if sum += want[i] * ms; at < sum || at > sum+time.Duration(i)*ms {
				t.Errorf("probe %d after %v, want %v", i, at, sum)
			}
		}
		if got := p.asked.Load() - asked; len(probes) != 10 || got != 10 {
			t.Errorf("%d probes, %d calls", len(probes), got)
		}
		p.broken.Store(false)
		for healed := time.Now(); !ok(t, s); time.Sleep(ms) {
			if time.Since(healed) > 200*ms {
				t.Fatal("not closed 200 ms after it answers again")
			}
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

// A sign of life of the server makes the next call a probe, however long the pause would have lasted.
func TestBreakerHears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, told := &patient{}, &changes{}
		s := backend.Breaker(p, 10*ms, told.told)
		open := func() {
			t.Helper()
			p.broken.Store(true)
			for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(ms) {
				ok(t, s) // until the pauses are long
			}
			for before := p.asked.Load(); p.asked.Load() == before; time.Sleep(ms) {
				ok(t, s) // one is over
			}
			p.broken.Store(false)
			if ok(t, s) {
				t.Fatal("not open")
			}
		}
		open()
		s.Heard()
		if told.all != "open " {
			t.Errorf("told %q", told.all)
		}
		if !ok(t, s) || told.all != "open closed " {
			t.Errorf("told %q", told.all)
		}
	})
}

// Takes that their callers end say nothing about a server that answers others; but one that answers nobody
// for a second fails, however short the deadlines are.
func TestBreakerKnowsWhoEndedATake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 10 * ms
		silent := storeFunc(func(ctx context.Context, _ []backend.Charge, decisions []backend.Decision) {
			<-ctx.Done()
			fail(decisions)
		})
		for name, bound := range map[string]func() (context.Context, context.CancelFunc){
			"deadline": func() (context.Context, context.CancelFunc) { return context.WithTimeout(t.Context(), 3*ms) },
			"cancelled": func() (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(3*ms, cancel)
				return ctx, cancel
			},
		} {
			told := &changes{}
			s := backend.Breaker(silent, timeout, told.told)
			start := time.Now()
			for told.all == "" && time.Since(start) < 10*time.Second {
				ctx, cancel := bound()
				take(ctx, s, costs(true, 1)...)
				cancel()
			}
			if took := time.Since(start); took < time.Second || took > time.Second+10*ms {
				t.Errorf("%s: told %q after %v", name, told.all, took)
			}
		}
	})
}

// A panic below ends the call, and so does it the probe.
func TestBreakerSurvivesPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := true
		s := backend.Breaker(storeFunc(func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
			if broken {
				panic("broken")
			}
			echo(ctx, charges, decisions)
		}), 10*ms, nil)
		for range 30 {
			func() {
				defer func() { _ = recover() }()
				ok(t, s)
			}()
			time.Sleep(5 * ms)
		}
		broken = false
		time.Sleep(200 * ms)
		if !ok(t, s) {
			t.Error("a probe that panicked is still in flight")
		}
	})
}

// A Take of many charges fails when one of them could not be decided; a denial, or a bucket for
// which there was no room, is an answer.
func TestBreakerKnowsFailuresFromAnswers(t *testing.T) {
	one := make([]backend.Decision, 2)
	s := backend.Breaker(storeFunc(func(_ context.Context, _ []backend.Charge, decisions []backend.Decision) {
		copy(decisions, one)
	}), 10*ms, nil)
	one[1].Err = backend.ErrFull
	for range 30 {
		if d := take(t.Context(), s, costs(false, 1, 1)...); !errors.Is(d[1].Err, backend.ErrFull) {
			t.Fatalf("open: %+v", d)
		}
	}
	one[1].Err = backend.ErrUnavailable
	opened := false
	synctest.Test(t, func(t *testing.T) {
		for range 40 {
			d := take(t.Context(), s, costs(false, 1, 1)...)
			opened = opened || d[0].Err != nil
			time.Sleep(5 * ms)
		}
	})
	if !opened {
		t.Error("one of two charges fails each time, and it does not open")
	}
}
