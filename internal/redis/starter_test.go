package redis

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
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
