package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// A proxy learns the id of its slot from a header, and returns the slot by its access log. If its connection ends before
// the answer, the slot is returned at once. Without a log listener nobody would return it, so the request is denied.
func TestAuthAnswersHaveTheIDOfTheirSlot(t *testing.T) {
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{
		IDs: reservation.NewKeys(func() []string { return []string{"secret"} }), Now: func() algorithms.Micros { return algorithms.Second }, Process: 1,
	})
	l.Swap(authSnapshot(t, `
domain: d
limits: {uploads: {algorithm: concurrency, capacity: 2, ttl: 1h}}
descriptors: [{key: a, value: slot, limit: uploads}, {key: a, value: free, rate_limit: {unit: hour, requests_per_unit: 100}}]
auth: {routes: [{match: {path: /slot}, descriptors: [[{key: a, value: slot}]]}, {descriptors: [[{key: a, value: free}]]}]}
`))
	gone, returns := false, true
	ask := func(path string) (code int, id, reason string) {
		t.Helper()
		d := &Auth{Limiter: l, Observer: &refusals{}, Log: zap.NewNop(), ReturnsSlots: returns, Gone: func(*http.Request) bool { return gone }}
		w := put(d.handler(), proxy, "GET /v1/auth"+path)
		h := w.Result().Header
		return w.Code, strings.Join(h["X-RateLimit-Slot"], ","), strings.Join(h["X-RateLimit-Reason"], ",")
	}
	want := func(path string, code int, hasID bool, reason string) (id string) {
		t.Helper()
		got, id, why := ask(path)
		if got != code || (id != "") != hasID || why != reason {
			t.Errorf("%s: got %d with the id %q and reason %q; want %d, an id: %v, reason %q", path, got, id, why, code, hasID, reason)
		}
		return id
	}
	want("/free", 200, false, "")
	first := want("/slot", 200, true, "")
	gone = true
	for range 3 {
		want("/slot", 503, false, "") // nobody reads this answer
	}
	gone = false
	if n := l.SlotCounts().Ended[limiter.ReporterReset][limiter.SlotReturned]; n != 3 {
		t.Errorf("%d slots were returned when connections ended, want 3", n)
	}
	want("/slot", 200, true, "")
	want("/slot", 429, false, "limit")
	l.ReturnSlots(first, limiter.ReporterLog)
	want("/slot", 200, true, "")
	returns = false
	want("/slot", 429, false, "no-return-door")
	want("/free", 200, false, "")
}
