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

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// blocking returns a sender whose calls are made by decide, which blocks until ctx ends.
func blocking(timeout time.Duration, decide func(ctx context.Context, c *call) error) *sender {
	l := newSender(timeout, nil)
	l.decide = func(c *call, until time.Time, done func(*call, error)) {
		l.spawn(func() {
			ctx, cancel := context.WithDeadline(context.Background(), until)
			defer cancel()
			done(c, decide(ctx, c))
		})
	}
	return l
}

type answer struct {
	*backend.Batch
	done  chan struct{}
	after time.Duration
}

func start(s backend.Store, b *backend.Batch) *answer {
	a := &answer{b, make(chan struct{}), 0}
	began := time.Now()
	b.Done = func(*backend.Batch) { a.after = time.Since(began); close(a.done) }
	s.Submit(b)
	return a
}

// is checks that the answer came exactly the given time after Submit, and that each charge was decided as echo does.
func (a *answer) is(t *testing.T, after time.Duration) {
	t.Helper()
	<-a.done
	if a.after != after {
		t.Errorf("answered after %v, want %v", a.after, after)
	}
	for i, d := range a.Decisions {
		if d.Err != nil || d.Remaining != a.Charges[i].Terms.Cost {
			t.Errorf("charge %d: got %+v; want no error and %v remaining", i, d, a.Charges[i].Terms.Cost)
		}
	}
}

func (a *answer) fails(t *testing.T, after time.Duration, want error) {
	t.Helper()
	<-a.done
	if a.after != after {
		t.Errorf("answered after %v, want %v", a.after, after)
	}
	for i, d := range a.Decisions {
		if !errors.Is(d.Err, want) {
			t.Errorf("charge %d: got %+v; want the error %v", i, d, want)
		}
	}
}

// Charges that fill another call are not delayed.
func TestALateCallDelaysOthersForHalfItsTimeout(t *testing.T) {
	for name, test := range map[string]struct {
		second int // the number of charges in each batch that is submitted while the first call is late
		want   time.Duration
	}{"few": {1, 5 * ms}, "many": {128, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := atomic.Int64{}
				l := blocking(10*ms, func(ctx context.Context, c *call) error {
					if calls.Add(1) == 1 {
						<-ctx.Done()
						c.fail(errDown)
						return errDown
					}
					return echo(c)
				})
				late := start(l, batchOf(1))
				synctest.Wait()
				a, b := start(l, batchOf(ones(test.second)...)), start(l, batchOf(ones(test.second)...))
				a.is(t, test.want)
				b.is(t, test.want)
				late.fails(t, 10*ms, backend.ErrUnavailable)
				if n := calls.Load(); n != 2 {
					t.Errorf("%d calls; want 2", n)
				}
			})
		})
	}
}

func TestDoneFunctionsDoNotDelayTheNextCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &server{latency: ms}
		l := blocking(time.Minute, p.decide)
		var notified sync.WaitGroup
		submit := func(n int) {
			for range n {
				notified.Add(1)
				b := batchOf(1)
				b.Done = func(*backend.Batch) { time.Sleep(time.Second); notified.Done() }
				l.Submit(b)
			}
		}
		submit(1)
		synctest.Wait()
		submit(20) // these wait until the first call and its Done function have ended
		time.Sleep(time.Second + ms/2)
		if n := p.called.Load(); n != 1 {
			t.Errorf("%d calls; want 1", n)
		}
		time.Sleep(2 * ms)
		submit(1)
		time.Sleep(2 * ms)
		if n := p.called.Load(); n != 3 {
			t.Errorf("%d calls; want 3", n)
		}
		notified.Wait()
	})
}

func TestAPanicHarmsNoOtherBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var panics []any
		l := blocking(10*ms, (&server{latency: ms}).decide)
		l.panicked = func(value any) { panics = append(panics, value) }
		panicking := func(text string) *backend.Batch {
			b := in(&backend.Source{Flush: func() { panic("flush " + text) }}, batchOf(1))
			b.Done = func(*backend.Batch) { panic(text) }
			return b
		}
		l.Submit(panicking("first"))
		synctest.Wait()
		l.Submit(panicking("second"))
		start(l, batchOf(3)).is(t, 2*ms)
		start(l, batchOf(1)).is(t, ms)
		if got := fmt.Sprint(panics); got != "[first flush first second flush second]" {
			t.Errorf("reported: %s; want %q", got, "[first flush first second flush second]")
		}
	})
}

// When a call ends, first the Done functions of all its batches are called. Then Flush is called once for
// each source.
func TestSourcesAreFlushedAfterTheirBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &server{latency: ms}
		l := blocking(10*ms, p.decide)
		log := ""
		a := &backend.Source{Flush: func() { log += "A " }}
		b := &backend.Source{Flush: func() { log += "B " }}
		start(l, batchOf(1))
		synctest.Wait()
		for i, from := range []*backend.Source{a, b, a, nil, b} {
			batch := in(from, batchOf(1))
			batch.Done = func(*backend.Batch) { log += fmt.Sprint(i, " ") }
			l.Submit(batch)
		}
		time.Sleep(3 * ms)
		synctest.Wait()
		if log != "0 2 1 4 3 A B " {
			t.Errorf("got %q; want log %q", log, "0 2 1 4 3 A B ")
		}
	})
}

// A call in flight is not interrupted.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &server{latency: 5 * ms}
		l := blocking(10*ms, p.decide)
		large := start(l, batchOf(ones(300)...))
		synctest.Wait()
		waits := start(l, batchOf(1))
		time.Sleep(ms)
		l.close()
		waits.fails(t, ms, backend.ErrNotTaken)
		start(l, batchOf(1)).fails(t, 0, backend.ErrNotTaken)
		<-large.done
		if first, last := large.Decisions[0].Err, large.Decisions[299].Err; large.after != 5*ms || first != nil || !errors.Is(last, backend.ErrNotTaken) {
			t.Errorf("after %v: first %v, last %v; want after %v no error for the first charge, and backend.ErrNotTaken for the last", large.after, first, last, 5*ms)
		}
		time.Sleep(time.Second)
		if n := p.called.Load(); n != 1 {
			t.Errorf("%d calls; want 1", n)
		}
	})
}

func TestGroupsThatAreTooLargeCostNothing(t *testing.T) {
	for name, sizes := range map[string][]int{
		"36,000 requests":      ones(36_000),
		"the largest group":    {maxGroup},
		"too large":            {maxGroup + 1},
		"too large, in a row":  {3, maxGroup + 1, 4, 2000, 8000, 1},
		"around":               {8000, 5, 8000},
		"large and small ones": {1, 300, 1, 255, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &server{}
				l := blocking(10*ms, p.decide)
				b := batchOf(sizes...)
				<-start(l, b).done
				at := 0
				for _, size := range sizes {
					for range size {
						switch d := b.Decisions[at]; {
						case size <= maxGroup && (d.Err != nil || d.Remaining != int64(at+1)):
							t.Fatalf("charge %d of a group of %d: got %+v; want no error and %d remaining", at, size, d, at+1)
						case size > maxGroup && (!errors.Is(d.Err, backend.ErrTooLarge) || errors.Is(d.Err, backend.ErrUnavailable)):
							t.Fatalf("charge %d of a group of %d: got %+v; want an ErrTooLarge that is not an ErrUnavailable", at, size, d)
						}
						at++
					}
				}
			})
		})
	}
}

func TestAnEmptyBatchIsDone(t *testing.T) {
	l := blocking(10*ms, (&server{}).decide)
	<-start(l, batchOf()).done
}
