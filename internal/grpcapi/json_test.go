package grpcapi

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// stalledStore decides when the channel is closed.
type stalledStore chan struct{}

func (s stalledStore) Submit(b *backend.Batch) {
	<-s
	for i := range b.Decisions {
		b.Decisions[i].Allowed = true
	}
	b.Done(b)
}

// Large requests in JSON need much memory. A few are decided at a time. A further one waits for its turn before it is
// decoded. Small requests do not wait, and a delayed answer takes no turn.
func TestLargeRequestsInJSONTakeTurns(t *testing.T) {
	large := []byte(`{"domain":"d","descriptors":[` + strings.Repeat(`{"entries":[{"key":"none"}]},`, mostSmall/2) + `{"entries":[{"key":"k","value":"v"}]}]}`)
	small := []byte(`{"domain":"d","descriptors":[{"entries":[{"key":"none"}]}]}`)
	synctest.Test(t, func(t *testing.T) {
		store := make(stalledStore)
		l := limiter.New(store, limiter.Config{})
		l.Swap(snapshot(&limiter.Policy{Name: "k", Limit: compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: second})}))
		s, _ := newServer(t, l, Options{})
		want := func(name string, body []byte, code int, after time.Duration) {
			t.Helper()
			began := time.Now()
			if got, text := s.AnswerJSON(t.Context(), body, false); got != code || time.Since(began) != after {
				t.Errorf("%s: got %d %s after %v; want status %d after %v", name, got, text, time.Since(began), code, after)
			}
		}
		var first sync.WaitGroup
		for range mostLarge {
			first.Go(func() { want("one of the first", large, http.StatusOK, time.Second) })
		}
		synctest.Wait()
		for name, body := range map[string][]byte{"one that is not JSON": []byte(strings.Repeat("{", mostSmall+1)), "a further one": large} {
			code := http.StatusOK
			if name == "one that is not JSON" {
				code = http.StatusBadRequest
			}
			first.Go(func() { want(name, body, code, time.Second) })
		}
		ended, end := context.WithTimeout(t.Context(), time.Millisecond)
		defer end()
		if code, _ := s.AnswerJSON(ended, large, false); code != http.StatusServiceUnavailable {
			t.Errorf("one whose client has disconnected: status %d; want 503", code)
		}
		want("a small one", small, http.StatusOK, 0)
		time.Sleep(time.Second - time.Millisecond)
		close(store)
		first.Wait()
		want("later", large, http.StatusOK, 0)
		if len(s.large) != 0 {
			t.Errorf("%d turns are taken; want none", len(s.large))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s, _ := newServer(t, newLimiter(leaky(t)), Options{})
		mustAllow(t, s, "jobs")
		delayed := []byte(strings.Replace(string(large), `"k"`, `"jobs"`, 1))
		go s.AnswerJSON(t.Context(), delayed, false)
		synctest.Wait()
		if len(s.large) != 0 || s.delays.Waiting() != 1 {
			t.Errorf("%d turns are taken by %d delayed answers; want none by one", len(s.large), s.delays.Waiting())
		}
		time.Sleep(2 * time.Second)
	})
}
