package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestBodiesAreDecodedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{working: make(chan struct{}, 2)}
		h := g.handler(operations{http.MethodPost: func(*http.Request, []byte) (any, error) {
			time.Sleep(time.Second)
			return done{OK: true}, nil
		}})
		var all sync.WaitGroup
		post := func(ctx context.Context, want string) {
			all.Go(func() {
				w := httptest.NewRecorder()
				if h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader("{}"))); w.Body.String() != want {
					t.Errorf("got %d %s; want the answer %q", w.Code, w.Body, want)
				}
			})
		}
		for range 6 {
			post(t.Context(), `{"ok":true}`)
		}
		synctest.Wait()
		gone, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		post(gone, "")
		start := time.Now()
		all.Wait()
		if took := time.Since(start); took != 3*time.Second || len(g.working) != 0 {
			t.Errorf("6 requests, 2 at a time, took %v, and %d are in progress; want 3 s and none", took, len(g.working))
		}
	})
}
