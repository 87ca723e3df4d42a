package httpapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// onStore is the API over one store. Its clock is also that of the store.
type onStore struct {
	http.Handler
	t     *testing.T
	clock *storetest.Clock
	store backend.Store
	l     *limiter.Limiter
}

// onEachStore runs test in memory and on Redis, with the domain edge and these limits.
func onEachStore(t *testing.T, limits string, test func(t *testing.T, s *onStore)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		test(t, inMemory(t, limits, 0))
	})
	t.Run("redis", func(t *testing.T) {
		clock := storetest.NewClock()
		test(t, on(t, openRedisAt(t, redistest.Start(t), clock), clock, limits))
	})
}

// inMemory returns the API over a memory store with this MaxKeys.
func inMemory(t *testing.T, limits string, maxKeys int) *onStore {
	t.Helper()
	clock := storetest.NewClock()
	return on(t, memory.New(memory.Config{Clock: clock.Time, MaxKeys: maxKeys}), clock, limits)
}

func on(t *testing.T, store backend.Store, clock *storetest.Clock, limits string) *onStore {
	t.Helper()
	s := &onStore{t: t, clock: clock, store: store}
	s.Handler = apiAt(t, s.store, clock.Now, func(a *API) { s.l = a.Limiter })
	s.configure(limits)
	return s
}

func openRedisAt(t *testing.T, server *redistest.Server, clock *storetest.Clock) backend.Store {
	t.Helper()
	store, err := redis.Open(redis.Config{URL: "redis://" + server.Addr, Timeout: 10 * time.Second, Clock: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// configure loads a configuration with the domain edge and these limits.
func (s *onStore) configure(limits string) {
	s.t.Helper()
	s.l.Swap(authSnapshot(s.t, "domain: edge\n"+limits))
}

// adjust replaces all adjustments by one of the key bob of a limit, or by none if limit is "".
func (s *onStore) adjust(limit string, change adjust.Change) {
	s.t.Helper()
	var all []*adjust.Adjustment
	if limit != "" {
		target := adjust.Target{Domain: "edge", Limit: limit, Key: []string{"bob"}}
		all = append(all, &adjust.Adjustment{ID: target.ID(), Target: target, Change: change, Expires: s.clock.Now() + algorithms.Day})
	}
	if a := s.l.Adjust(adjust.NewSet(adjust.Head{}, all), s.clock.Now); a.InForce != len(all) {
		s.t.Fatalf("got %+v; want %d adjustments in force", a, len(all))
	}
}

// post sends a request to path, which must get the status code, and returns the answer.
func (s *onStore) post(path, body string, code int) (answer apiReply) {
	s.t.Helper()
	w := call(s, "POST", path, body)
	if w.Code != code {
		s.t.Errorf("%s %s: got %d %s; want status %d", path, body, w.Code, w.Body, code)
	}
	_ = json.Unmarshal(w.Body.Bytes(), &answer) // the body of an error differs
	return answer
}

// wantLeft checks what is left of the bucket of bob.
func (s *onStore) wantLeft(limit string, want int64) {
	s.t.Helper()
	if left := s.leftOf(limit); left != want {
		s.t.Errorf("%s: %d left; want %d", limit, left, want)
	}
}

// leftOf returns what is left of the bucket of bob, below 0 if it has a debt.
func (s *onStore) leftOf(limit string) int64 {
	s.t.Helper()
	w := call(s, "GET", "/v1/limits/"+limit+"?key=bob", "")
	var got struct {
		Value int64
		Scale int64 `json:"value_scale"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 {
		s.t.Fatalf("got %d %s, %v", w.Code, w.Body, err)
	}
	return wholeUnits(got.Value, got.Scale)
}

// wholeUnits returns value/scale, rounded down.
func wholeUnits(value, scale int64) int64 {
	if value < 0 {
		return -((-value-1)/scale + 1)
	}
	return value / scale
}

var limitNumber = regexp.MustCompile(`"limit":\d+`)

// numbers returns an answer without the numbers of the limits, which are those of the present configuration. The ids of
// reservations contain them, too.
func numbers(w *httptest.ResponseRecorder) string {
	return reservations.ReplaceAllString(limitNumber.ReplaceAllString(w.Body.String(), ""), "")
}
