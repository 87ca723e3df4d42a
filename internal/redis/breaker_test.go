package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

type server struct {
	broken  atomic.Bool
	latency time.Duration
	called  atomic.Int64
}

func (s *server) decide(_ context.Context, c *call) error {
	s.called.Add(1)
	time.Sleep(s.latency)
	if s.broken.Load() {
		c.fail(errDown)
		return errDown
	}
	return echo(c)
}

var errDown = fmt.Errorf("%w: down", backend.ErrUnavailable)

// echo allows everything, and returns the cost as Remaining, so that each answer identifies its charge.
func echo(c *call) error {
	for _, r := range c.runs {
		for i := r.from; i < r.to; i++ {
			d := &r.batch.Decisions[i]
			d.Allowed, d.Remaining = true, r.batch.Charges[i].Terms.Cost
		}
	}
	return nil
}

type changes struct {
	mu  sync.Mutex
	all string
}

func (c *changes) record(open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if open {
		c.all += "open "
	} else {
		c.all += "closed "
	}
}

func guarding(s *server, reported *changes) *sender {
	l := blocking(10*ms, s.decide)
	l.changed = reported.record
	return l
}

func ok(t *testing.T, s backend.Store) bool {
	t.Helper()
	b := batchOf(1)
	backend.Take(t.Context(), s, b.Charges, b.Decisions)
	if err := b.Decisions[0].Err; err != nil && !errors.Is(err, backend.ErrUnavailable) {
		t.Fatalf("got %v; want the error backend.ErrUnavailable", err)
	}
	return b.Decisions[0].Err == nil
}

func TestAStallDeniesOnlyTheRequestsDuringIt(t *testing.T) {
	const timeout, every = 10 * ms, 200 * time.Microsecond
	for _, stall := range []time.Duration{6 * ms, 10 * ms, 15 * ms, 20 * ms, 30 * ms, 60 * ms, 100 * ms, 120 * ms} {
		for _, withDeadline := range []bool{false, true} {
			t.Run(fmt.Sprint(stall, " with a deadline ", withDeadline), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					server := &stalling{from: time.Now().Add(50 * ms), length: stall}
					s := backend.Store(blocking(timeout, server.decide))
					if withDeadline {
						s = stores.Deadline(nil, s, timeout, ms, nil)
					}
					denied := int(steady(s, 50*ms+stall+100*ms, every, timeout))
					if most := int((stall + 20*ms) / every); denied > most {
						t.Errorf("%d failed; want at most the %d that arrived in the stall and 20 ms more", denied, most)
					}
					if stall <= timeout-ms && denied > 0 {
						t.Errorf("%d failed because of a stall shorter than the timeout; want none", denied)
					}
				})
			})
		}
	}
}

type stalling struct {
	from   time.Time
	length time.Duration
}

func (s *stalling) decide(ctx context.Context, c *call) error {
	if until := s.from.Add(s.length); !time.Now().Before(s.from) && time.Now().Before(until) {
		select {
		case <-time.After(time.Until(until)):
		case <-ctx.Done():
			c.fail(errDown)
			return errDown
		}
	}
	return echo(c)
}

func steady(s backend.Store, length, every, within time.Duration) (failed int64) {
	var n atomic.Int64
	var wg sync.WaitGroup
	for range length / every {
		b := batchOf(1)
		b.Deadline = time.Now().Add(within)
		b.Done = func(b *backend.Batch) {
			if b.Decisions[0].Err != nil {
				n.Add(1)
			}
			wg.Done()
		}
		wg.Add(1)
		s.Submit(b)
		time.Sleep(every)
	}
	wg.Wait()
	return n.Load()
}

// While the circuit is open, one of several concurrent calls is the probe. The others are refused at once.
func TestBreakerProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, reported := &server{latency: 4 * ms}, &changes{}
		s := guarding(p, reported)
		p.broken.Store(true)
		for reported.all == "" {
			ok(t, s)
		}
		for range 300 {
			before := p.called.Load()
			var wg sync.WaitGroup
			for range 8 {
				at := time.Now()
				wg.Go(func() {
					if ok(t, s) {
						t.Error("answered by a server that fails")
					}
					if took := time.Since(at); p.called.Load() == before && took != 0 {
						t.Errorf("a call that was not sent took %v", took)
					}
				})
			}
			wg.Wait()
			if sent := p.called.Load() - before; sent > 1 {
				t.Errorf("%d probes at once, want at most 1", sent)
			}
			time.Sleep(ms)
		}
		p.broken.Store(false)
		if ok(t, s) {
			t.Error("a call during a pause was answered, want it refused")
		}
		s.signOfLife()
		if want := "open "; reported.all != want {
			t.Errorf("after the sign of life: reported %q, want %q", reported.all, want)
		}
		for range 10 {
			if !ok(t, s) {
				t.Error("a call failed after the sign of life; want an answer")
			}
		}
		if want := "open closed "; reported.all != want {
			t.Errorf("reported %q, want %q", reported.all, want)
		}
	})
}

// The steps of a circuit, each with the time since the one before. Before a step, any number of failures may come.
func TestTheStepsOfACircuit(t *testing.T) {
	type step struct {
		failures int // before this step, one in each millisecond
		after    time.Duration
		event    event
		want     effect
	}
	opened := circuit{open: true, pause: maxProbePause, probeAt: time.Unix(0, 0)}
	for name, test := range map[string]struct {
		circuit circuit
		steps   []step
	}{
		"opens 100 ms after the first failure": {steps: []step{{98, 2 * ms, callFailed, doNothing}, {0, ms, callFailed, doReportOpen}, {0, 0, callFailed, doNothing}}},
		"an answer starts the 100 ms again": {steps: []step{
			{99, ms, callAnswered, doNothing}, {99, 2 * ms, callFailed, doReportOpen}, {0, 0, callAnswered, doReportClosed}, {99, ms, callStarts, doSend},
		}},
		"four failures are too few at a low rate": {steps: []step{{3, time.Second, callFailed, doNothing}, {0, time.Second, callFailed, doReportOpen}}},
		"the pauses between probes double up to 200 ms": {steps: func() (all []step) {
			all = []step{{99, 2 * ms, callFailed, doReportOpen}, {0, 0, callStarts, doProbe}, {0, 4 * ms, callFailed + ofProbe, doNothing}}
			for _, pause := range []time.Duration{10, 20, 40, 80, 160, 200, 200} {
				all = append(all, step{0, (pause - 5) * ms, callStarts, doRefuse}, step{0, ms, callStarts, doProbe}, step{0, 4 * ms, callFailed + ofProbe, doNothing})
			}
			return all
		}()},
		// If a probe hangs, perhaps on a dead connection, and the server gives a sign of life, another probe is sent.
		"a sign of life makes the next call a probe": {opened, []step{
			{0, 0, callStarts, doProbe},
			{0, ms, callStarts, doRefuse}, // the probe is in flight
			{0, ms, serverHeard, doNothing},
			{0, ms, callStarts, doProbe},
			{0, ms, callStarts, doRefuse},
			{0, ms, callFailed + ofProbe, doNothing}, // the first probe fails
			{0, ms, callStarts, doRefuse},            // the pause starts again at 10 ms
			{0, 8 * ms, callStarts, doProbe},
			{0, ms, callAnswered + ofProbe, doReportClosed},
			{0, ms, callStarts, doSend},
		}},
	} {
		c, at := test.circuit, time.Unix(0, 0)
		for i, s := range test.steps {
			for range s.failures {
				at = at.Add(ms)
				if c, _ = c.step(callFailed, at); c.open {
					t.Fatalf("%s, before step %d: open", name, i)
				}
			}
			at = at.Add(s.after)
			var got effect
			if c, got = c.step(s.event, at); got != s.want {
				t.Errorf("%s, step %d: effect %v, want %v", name, i, got, s.want)
			}
		}
	}
}

// A probe may take longer than a call, because it prepares a connection first. Its caller still gets an
// answer at its deadline.
func TestBreakerGivesProbesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, reported := &server{}, &changes{}
		l := guarding(p, reported)
		l.probeTimeout = 250 * ms
		l.decide = func(c *call, until time.Time, done func(*call, error)) {
			go func() {
				if c.permit == doProbe && time.Until(until) >= 40*ms {
					time.Sleep(40 * ms) // the time to dial, log in and load the script
				}
				done(c, p.decide(t.Context(), c))
			}()
		}
		s := stores.Deadline(nil, l, 10*ms, ms, nil)
		p.broken.Store(true)
		for reported.all == "" {
			ok(t, s)
			time.Sleep(ms)
		}
		p.broken.Store(false)
		healed := time.Now()
		for begin := healed; !ok(t, s); begin = time.Now() {
			if took := time.Since(begin); took > 10*ms {
				t.Errorf("a caller waited %v; want at most its deadline of %v", took, 10*ms)
			}
			if took := time.Since(healed); took > 50*ms {
				t.Fatalf("still open %v after the first probe could have been answered; want at most %v", took, 50*ms)
			}
			time.Sleep(ms)
		}
		if want := "open closed "; reported.all != want {
			t.Errorf("reported %q, want %q", reported.all, want)
		}
		synctest.Wait()
	})
}

// A call has the timeout of the sender, not the deadline of its callers.
func TestBreakerDoesNotCountShortDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, reported := &server{latency: 8 * ms}, &changes{}
		if failed := steady(guarding(p, reported), 2*time.Second, 4*ms, 3*ms); reported.all != "" || failed > 400 {
			t.Errorf("reported %q, %d failed; want no report, and at most 400 failures", reported.all, failed)
		}
	})
}

// An error of a decision, such as ErrFull, is an answer.
func TestBreakerDistinguishesFailuresFromAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for err, want := range map[error]string{nil: "", errDown: "open "} {
			reported := &changes{}
			s := blocking(10*ms, func(_ context.Context, c *call) error {
				for _, r := range c.runs {
					r.batch.Decisions[r.from].Err = backend.ErrFull
				}
				return err
			})
			s.changed = reported.record
			for range 30 {
				ok := batchOf(1, 1)
				backend.Take(t.Context(), s, ok.Charges, ok.Decisions)
				time.Sleep(5 * ms)
			}
			if reported.all != want {
				t.Errorf("%v: reported %q; want %v", err, reported.all, want)
			}
		}
	})
}

// A claim with less time than a usual call may fail though the server is well.
func TestOnlyClaimsWithTheTimeOfACallOpenTheCircuit(t *testing.T) {
	for within, opens := range map[time.Duration]bool{2 * ms: false, 10 * ms: true} {
		synctest.Test(t, func(t *testing.T) {
			l := blocking(10*ms, nil)
			for range 20 {
				ctx, cancel := context.WithTimeout(t.Context(), within)
				_ = l.guard(ctx, func() error {
					time.Sleep(10 * ms)
					return backend.ErrUnavailable
				})
				cancel()
			}
			if l.circuit.open != opens {
				t.Errorf("20 claims within %v failed: the circuit is open: %v, want %v", within, l.circuit.open, opens)
			}
		})
	}
}

// A refund that is refused is lost. So the breaker of the calls for which no caller waits is open only while that of
// the other calls is open, too.
func TestRefundsAreSentWhileRequestsAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		works := new(server)
		w := &serverSenders{usual: blocking(10*ms, works.decide), long: blocking(time.Minute, works.decide)}
		fails := circuit{open: true, probeAt: time.Now().Add(time.Hour)}
		for _, usual := range []circuit{{}, fails} {
			w.usual.circuit, w.long.circuit = usual, fails
			b := batchOf(1)
			backend.Wait(w, backend.Batch{Charges: b.Charges, Decisions: b.Decisions, Detached: true})
			synctest.Wait()
			if d := b.Decisions[0]; errors.Is(d.Err, errOpen) != usual.open || d.Allowed == usual.open {
				t.Errorf("requests fail: %v; got %+v for a refund", usual.open, d)
			}
		}
	})
}
