package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// A sender may be added while others are being started.
func TestStartersStartEverySender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const soon = time.Microsecond // the starter begins after this time, when submit has added its senders
		s := newStarter(func(f func()) { time.AfterFunc(soon, f) })
		var senders []*sender
		for range 8 {
			l := blocking(10*ms, (&server{latency: ms}).decide)
			l.start = s.add
			senders = append(senders, l)
		}
		for range 5 {
			var mu sync.Mutex
			var all []*answer // guarded by mu
			submit := func(senders []*sender) {
				for _, l := range senders {
					a := start(l, limited(1))
					mu.Lock()
					all = append(all, a)
					mu.Unlock()
				}
			}
			later := func() { submit(senders[4:]) } // called when the first of the other senders starts
			senders[0].spawn = func(f func()) {
				if later != nil {
					later()
				}
				later = nil
				go f()
			}
			submit(senders[:4])
			time.Sleep(5 * ms)
			mu.Lock()
			for _, a := range all {
				a.is(t, soon+ms)
			}
			if len(all) != len(senders) {
				t.Errorf("%d batches ended; want %v", len(all), len(senders))
			}
			mu.Unlock()
		}
	})
}

// The parts of a large batch keep its deadline, its source and Detached. The decisions of one part are
// known before the next part is sent.
func TestPartsOfALargeBatchKeepItsSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var usual, long int
		record := func(n *int) *sender {
			return blocking(time.Minute, func(_ context.Context, c *call) error {
				*n += c.charges
				time.Sleep(4 * ms)
				return echo(c)
			})
		}
		w := &serverSenders{usual: record(&usual), long: record(&long)}
		var flushed atomic.Int32
		source := &backend.Source{Flush: func() { flushed.Add(1) }}
		var known []string
		large := func() *backend.Batch { // parts of 3, 300, 2, 300 and 1 charges, each of which takes 4 ms
			b := limited(1, 1, 1, 300, 1, 1, 300, 1)
			b.Source, b.Known = source, make([]atomic.Bool, len(b.Charges))
			began := time.Now()
			b.OnKnown = func(from, to int) {
				if from < to {
					known = append(known, fmt.Sprint(from, "-", to, " after ", time.Since(began)))
				}
			}
			return b
		}
		b := large()
		b.Deadline = time.Now().Add(10 * ms)
		<-start(w, b).done
		synctest.Wait()
		for i, d := range b.Decisions {
			switch late := i >= 305; {
			case late && !errors.Is(d.Err, context.DeadlineExceeded):
				t.Errorf("charge %d of a part after the deadline: %+v; want the error context.DeadlineExceeded", i, d)
			case !late && d.Remaining != b.Charges[i].Terms.Cost:
				t.Errorf("charge %d: %+v; want %d remaining", i, d, b.Charges[i].Terms.Cost)
			}
		}
		if usual != 5 || long != 300 || flushed.Load() == 0 {
			t.Errorf("%d charges were sent by usual and %d by long; the source was flushed %d times; want 5, 300 and at least once", usual, long, flushed.Load())
		}
		want := []string{"0-3 after 4ms", "3-303 after 8ms", "303-305 after 12ms"}
		if len(known) < 3 || !slices.Equal(known[:3], want) {
			t.Errorf("known early: %v, want %v", known, want)
		}
		b = large()
		b.Detached = true
		<-start(w, b).done
		if usual != 5 || long != 300+606 {
			t.Errorf("Detached: %d charges were sent by usual and %d by long; want 5 and %d", usual, long, 300+606)
		}
	})
}
