package httpapi

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

func TestSlotsOverHTTP(t *testing.T) {
	const limits = `
limits:
  uploads: {algorithm: concurrency, capacity: 3, ttl: 1m}
  calls:   {algorithm: fixed_window, rate: 3, period: 1d}
  tokens:  {algorithm: fixed_window, rate: 1000, period: 1d}
`
	onEachStore(t, limits, func(t *testing.T, s *onStore) {
		take := func(body string, code int) apiReply {
			t.Helper()
			return s.post("/v1/limit", body, code)
		}
		returned := func(id, count, want string) {
			t.Helper()
			body := `{"reservation":"` + id + `"}`
			if count != "" {
				body = settleBody(id, count)
			}
			if got := s.post("/v1/limit", body, 200); strings.Join(got.Slots, " ") != want {
				t.Errorf("got the outcomes %v, want %s", got.Slots, want)
			}
		}
		two := take(`{"name":"uploads","key":"bob","count":2}`, 200)
		if two.Reservation == "" || two.Limits[0].Remaining != 1 || two.Limits[0].ResetAfter != nil || two.Limits[0].TTL != 60_000 {
			t.Errorf("got %+v; want an id, 1 left, a ttl of 1 m, and no other time", two)
		}
		if w := call(s, "GET", "/v1/limits/uploads?key=bob", ""); !strings.Contains(w.Body.String(), `"in_flight":2`) {
			t.Errorf("got %s; want 2 in flight", w.Body)
		}
		denied := take(`{"name":"uploads","key":"bob","count":2}`, 429)
		if denied.RetryAfter != 0 || denied.Reservation != "" || denied.Limits[0].TTL != 0 {
			t.Errorf("got %+v; want neither a time nor an id", denied)
		}
		if w := call(s, "POST", "/v1/limit", `{"name":"uploads","key":"bob","count":2}`); w.Header().Get("Retry-After") != "" {
			t.Errorf("got Retry-After %s; want none", w.Header().Get("Retry-After"))
		}
		returned(two.Reservation, "", "returned")
		returned(two.Reservation, "0", "gone")

		// All or none, with a reservation that is settled by the same id.
		both := take(`{"limits":[{"name":"uploads","key":"bob","count":3},{"name":"calls","key":"bob"},{"name":"tokens","key":"bob","count":100,"reserve":true}]}`, 200)
		take(`{"limits":[{"name":"uploads","key":"bob"},{"name":"calls","key":"bob"}]}`, 429)
		s.post("/v1/limit", `{"reservation":"`+both.Reservation+`"}`, 400)
		returned(both.Reservation, "30", "returned")

		// A repeated request gets the same slot, even if it was returned.
		const once = `{"name":"uploads","key":"eve","count":2,"request_id":"one"}`
		first, second := take(once, 200), take(once, 200)
		returned(first.Reservation, "", "returned")
		third := take(once, 200)
		if second.Reservation != first.Reservation || third.Reservation != first.Reservation {
			t.Errorf("got the ids %s, %s and %s, want the same", first.Reservation, second.Reservation, third.Reservation)
		}
		returned(third.Reservation, "", "gone")

		// Renewed in time, and too late.
		kept, lost := take(`{"name":"uploads","key":"ann"}`, 200).Reservation, take(`{"name":"uploads","key":"ann"}`, 200).Reservation
		s.clock.Set(s.clock.Now() + 40*algorithms.Second)
		s.post("/v1/renew", `{"reservation":"`+kept+`"}`, 200)
		s.clock.Set(s.clock.Now() + 40*algorithms.Second)
		s.post("/v1/renew", `{"reservation":"`+lost+`"}`, 410)
		s.post("/v1/renew", `{"reservation":"`+lost[1:]+`"}`, 404)
		returned(kept, "", "returned")
		returned(lost, "", "gone")
	})
}

// TestAnIDThatIsUsedAgainIsSettledAgain repeats a request after its request_id is no longer remembered. It reserves again, so
// it is settled again, also if the id of its slot is the same.
func TestAnIDThatIsUsedAgainIsSettledAgain(t *testing.T) {
	const limits = `
limits:
  uploads: {algorithm: concurrency, capacity: 3, ttl: 1m}
  tokens:  {algorithm: fixed_window, rate: 1000, period: 1d, start: 2026-01-01T00:00:00Z}
`
	const slot, reservation = `{"name":"uploads","key":"bob"}`, `{"name":"tokens","key":"bob","count":100,"reserve":true}`
	s, left := inMemory(t, limits, 0), int64(1000)
	for n, body := range []string{reservation, reservation + "," + slot} {
		for range 2 {
			id := s.post("/v1/limit", `{"request_id":"`+strconv.Itoa(n)+`","remember":"1s","limits":[`+body+`]}`, 200).Reservation
			s.post("/v1/limit", settleBody(id, "30"), 200)
			left -= 30
			s.wantLeft("tokens", left)
			s.clock.Set(s.clock.Now() + 2*algorithms.Second)
		}
	}
}

// A settlement whose units were settled, but whose slot the store could not return, is a failure and no denial: it can be
// repeated.
func TestASlotThatCannotBeReturned(t *testing.T) {
	h := apiOver(t, keepsSlots{memory.New(memory.Config{})}, func(a *API) {
		a.Limiter.Swap(authSnapshot(t, `
domain: d
limits:
  uploads: {algorithm: concurrency, capacity: 3, ttl: 1m}
  tokens:  {algorithm: fixed_window, rate: 1000, period: 1d}
`))
	})
	w := call(h, "POST", "/v1/limit", `{"limits":[{"name":"uploads"},{"name":"tokens","count":100,"reserve":true}]}`)
	w = call(h, "POST", "/v1/limit", settleBody(ids.FindStringSubmatch(w.Body.String())[1], "30"))
	if w.Code != 503 || !strings.Contains(w.Body.String(), "the return of the slot is repeated") {
		t.Errorf("got %d %s; want 503, because of the slot", w.Code, w.Body)
	}
}

// keepsSlots is a store that cannot return slots.
type keepsSlots struct{ *memory.Store }

func (k keepsSlots) Submit(b *backend.Batch) {
	for i := range b.Charges {
		if slot := b.Charges[i].Terms.Slot; slot != nil && slot.Op == algorithms.ReturnSlot {
			b.Decisions[i].Err = backend.ErrUnavailable
		} else {
			backend.Take(context.Background(), k.Store, b.Charges[i:i+1], b.Decisions[i:i+1])
		}
	}
	b.Done(b)
}
