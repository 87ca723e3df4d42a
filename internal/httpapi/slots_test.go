package httpapi

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestBodiesAreWorkedAtInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s slots
		var mu sync.Mutex
		var all sync.WaitGroup
		inside, most := 0, 0
		for range 3 * maxWorking {
			all.Go(func() {
				if !s.enter(t.Context()) {
					t.Error("the first requests got no slot")
					return
				}
				defer s.leave()
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				inside--
				mu.Unlock()
			})
		}
		synctest.Wait()
		gone, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if s.enter(gone) {
			t.Error("a canceled request got a slot")
		}
		start := time.Now()
		all.Wait()
		if took := time.Since(start); most != maxWorking || took.Round(time.Second) != 3*time.Second {
			t.Errorf("%d requests had a slot at the same time, for %v in total; want %d and 3 s", most, took, maxWorking)
		}
	})
}
