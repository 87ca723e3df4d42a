package httpapi

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

func TestBodiesAreDecodedInTurn(t *testing.T) {
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

func TestRequestsLeaveTheirSlots(t *testing.T) {
	var a *API
	h := apiOver(t, memory.New(memory.Config{}), func(api *API) { a = api })
	for _, path := range []string{"/v1/limit", "/v1/check", "/v1/reset"} {
		for _, body := range []string{`{"name":"send"}`, `{"name":"nope"}`, `{`} {
			call(h, "POST", path, body)
		}
	}
	if n := len(a.working.busy); n != 0 {
		t.Errorf("%d requests are in progress after their answers; want none", n)
	}
}
