package httpapi

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

func onClock(tb testing.TB, edit ...func(*API)) (http.Handler, *storetest.Clock) {
	tb.Helper()
	clock := storetest.NewClock()
	return apiAt(tb, memory.New(memory.Config{Clock: clock.Time}), clock.Now, edit...), clock
}

func TestARequestWithAnIDIsChargedOnce(t *testing.T) {
	h, clock := onClock(t)
	const (
		body = `{"name":"tokens","key":"bob","count":4,"reserve":true,"request_id":"r1","jitter":5000}`
		list = `{"limits":[{"name":"send","key":"bob"},{"name":"few","key":"bob","count":2},{"name":"seen","key":"bob"}],"request_id":"r2"}`
	)
	first, firstList := call(h, "POST", "/v1/limit", body), call(h, "POST", "/v1/limit", list)
	if first.Code != 200 || firstList.Code != 200 || first.Header().Get("Idempotent-Replayed") != "" {
		t.Fatalf("got %d %s, %d %s; want status 200 twice, and no replay", first.Code, first.Body, firstList.Code, firstList.Body)
	}
	clock.Set(storetest.Start + 5*algorithms.Second)
	for range 2 {
		again, againList := call(h, "POST", "/v1/limit", body), call(h, "POST", "/v1/limit", list)
		if again.Body.String() != first.Body.String() || again.Code != first.Code || again.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("repeated:\n got %d %s\nwant %d %s", again.Code, again.Body, first.Code, first.Body)
		}
		if againList.Body.String() != firstList.Body.String() || againList.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("repeated:\n got %s\nwant %s", againList.Body, firstList.Body)
		}
	}
	script(t, h, clock,
		exchangeStep{5000 * ms, "/v1/check", `{"name":"tokens","key":"bob","count":0}`, 200,
			`{"ok":true,"limits":[{"name":"tokens","key":"bob","ok":true,"remaining":6,"limit":10,"reset_after_ms":19000}]}`},
		exchangeStep{5000 * ms, "/v1/limit", `{"name":"tokens","key":"bob","count":5,"request_id":"r1"}`, 422,
			`request_id: it was used for another request; use a new one for each request`},
		exchangeStep{5000 * ms, "/v1/limit", `{"domain":"other","name":"both","request_id":"r1"}`, 200, // the same id in another domain
			`{"ok":true,"limits":[{"name":"both","ok":true,"remaining":0,"limit":1,"reset_after_ms":1000}]}`},
		exchangeStep{5000 * ms, "/v1/check", `{"name":"send","request_id":"r1"}`, 400,
			`reservation and request_id belong to /v1/limit: a dry run consumes nothing`},
		// A denial consumes nothing and is not stored, so the same id can succeed later.
		exchangeStep{5000 * ms, "/v1/limit", `{"name":"few","key":"eve","count":3}`, 200,
			`{"ok":true,"limits":[{"name":"few","key":"eve","ok":true,"remaining":0,"limit":3,"reset_after_ms":3000}]}`},
		exchangeStep{5000 * ms, "/v1/limit", `{"name":"few","key":"eve","request_id":"r3"}`, 429,
			`{"ok":false,"retry_after_ms":1000,"limits":[{"name":"few","key":"eve","ok":false,"remaining":0,"limit":3,"reset_after_ms":3000,"retry_after_ms":1000}]}`},
		exchangeStep{6000 * ms, "/v1/limit", `{"name":"few","key":"eve","request_id":"r3"}`, 200,
			`{"ok":true,"limits":[{"name":"few","key":"eve","ok":true,"remaining":0,"limit":3,"reset_after_ms":3000}]}`},
		exchangeStep{9000 * ms, "/v1/limit", `{"name":"few","key":"eve","request_id":"r3"}`, 200,
			`{"ok":true,"limits":[{"name":"few","key":"eve","ok":true,"remaining":0,"limit":3,"reset_after_ms":3000}]}`},
		exchangeStep{606_000 * ms, "/v1/limit", `{"name":"few","key":"eve","request_id":"r3"}`, 200, // ten minutes have passed, so the answer is no longer stored
			`{"ok":true,"limits":[{"name":"few","key":"eve","ok":true,"remaining":2,"limit":3,"reset_after_ms":1000}]}`},
	)
}

func TestAnIDInFlightIsAConflict(t *testing.T) {
	w := call(apiOver(t, broken{backend.ErrPending}), "POST", "/v1/limit", `{"name":"pass","request_id":"r"}`)
	if w.Code != 409 || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), "problem:under-way") {
		t.Errorf("got %d %v %s; want status 409 under-way with Retry-After 1", w.Code, w.Header(), w.Body)
	}
}

type apiReply struct {
	OK          bool
	Reservation string
	RetryAfter  int64 `json:"retry_after_ms"`
	Wait        int64 `json:"wait_ms"`
	Limits      []struct {
		Reservation string
		Remaining   int64
		ResetAfter  *int64 `json:"reset_after_ms"`
		RetryAfter  int64  `json:"retry_after_ms"`
		Wait        int64  `json:"wait_ms"`
		TTL         int64  `json:"ttl_ms"`
	}
	Slots []string
}

func reserve(t *testing.T, h http.Handler, body string) string {
	t.Helper()
	w := call(h, "POST", "/v1/limit", body)
	var answer apiReply
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || !answer.OK || answer.Reservation == "" || answer.Limits[0].Reservation != answer.Reservation {
		t.Fatalf("%s: got %d %s (%v); want one reservation, also in the limit", body, w.Code, w.Body, err)
	}
	return answer.Reservation
}

func settleBody(id, count string) string { return `{"reservation":"` + id + `","count":` + count + `}` }

func TestForgedReservationsAreRefused(t *testing.T) {
	bare, _ := onClock(t)
	for _, id := range []string{"", "x", "AAAA", strings.Repeat("A", 60_000)} {
		exchangeStep{0, "/v1/limit", settleBody(id, "1"), 404, `reservation is not a reservation, or was signed with another key`}.check(t, bare)
	}
	with := func(token string) func(*API) { return func(a *API) { a.Token = httpauth.FixedToken(token) } }
	clock := storetest.NewClock()
	store := memory.New(memory.Config{Clock: clock.Time})
	one, other, foreign := apiOver(t, store, with("s3cret")), apiOver(t, store, with("s3cret")), apiOver(t, store, with("else"))
	post := func(h http.Handler, token, body string) (int, string) {
		w := call(h, "POST", "/v1/limit", body, "Authorization", "Bearer "+token)
		return w.Code, w.Body.String()
	}
	_, text := post(one, "s3cret", `{"name":"tokens","key":"a","count":5,"reserve":true}`)
	var answer apiReply
	if err := json.Unmarshal([]byte(text), &answer); err != nil || answer.Reservation == "" {
		t.Fatalf("got %v, %v; want a reservation", text, err)
	}
	id := answer.Reservation
	for i := range id {
		forged := []byte(id)
		if forged[i]++; forged[i] == id[i]+1 && i == len(id)-1 {
			forged[i] = 'A' // the last character of an id has unused bits
		}
		if code, text := post(one, "s3cret", settleBody(string(forged), "1")); code != 404 && string(forged) != id {
			t.Fatalf("%s: got %d %s; want status 404", forged, code, text)
		}
	}
	if code, text := post(foreign, "else", settleBody(id, "1")); code != 404 {
		t.Errorf("with another token: got %d %s; want status 404", code, text)
	}
	if code, text := post(other, "s3cret", settleBody(id, "1")); code != 200 || !strings.Contains(text, `"remaining":9`) {
		t.Errorf("another sidecar: got %d %s; want status 200 and 9 remaining", code, text)
	}
	if code, text := post(one, "s3cret", settleBody(id, "1")); code != 200 || !strings.Contains(text, `"remaining":9`) {
		t.Errorf("a repeated settlement: got %d %s; want status 200 and 9 remaining", code, text)
	}
}

// A request that reserves several limits gets one id for each limit, and one for all. Each limit is settled
// once, whichever id a client uses.
func TestSeveralReservedLimits(t *testing.T) {
	h, clock := onClock(t)
	const list = `{"limits":[{"name":"tokens","key":"KEY","count":4,"reserve":true},{"name":"send","key":"a"},{"name":"hourly","key":"KEY","count":9,"reserve":true}]}`
	reserved := func(key string) apiReply {
		t.Helper()
		w := call(h, "POST", "/v1/limit", strings.ReplaceAll(list, "KEY", key))
		var answer apiReply
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || answer.Reservation == "" || answer.Limits[1].Reservation != "" {
			t.Fatalf("got %v, %v; want one reservation, not in the limits", w.Body, err)
		}
		return answer
	}
	for n, whole := range map[int]bool{limiter.MaxReserved: true, limiter.MaxReserved + 1: false} { // more limits have no id for all
		list := strings.Repeat(`,{"name":"hourly","key":"many","reserve":true}`, n)[1:]
		if w := call(h, "POST", "/v1/limit", `{"limits":[`+list+`]}`); w.Code != 200 || strings.HasPrefix(w.Body.String(), `{"ok":true,"reservation":`) != whole {
			t.Errorf("%d limits: got %d %s; want an id for all of them: %t", n, w.Code, w.Body, whole)
		}
	}
	const both = `{"ok":true,"limits":[{"name":"tokens","key":"b","ok":true,"remaining":8,"limit":10,"reset_after_ms":12000},{"name":"hourly","key":"b","ok":true,"remaining":98,"limit":100,"reset_after_ms":3600000}]}`
	a, b, c := reserved("a"), reserved("b"), reserved("c")
	script(t, h, clock,
		exchangeStep{0, "/v1/limit", settleBody(a.Limits[0].Reservation, "1"), 200,
			`{"ok":true,"limits":[{"name":"tokens","key":"a","ok":true,"remaining":9,"limit":10,"reset_after_ms":6000}]}`},
		exchangeStep{0, "/v1/limit", settleBody(a.Limits[2].Reservation, "0"), 200,
			`{"ok":true,"limits":[{"name":"hourly","key":"a","ok":true,"remaining":100,"limit":100,"reset_after_ms":3600000}]}`},
		exchangeStep{0, "/v1/limit", settleBody(a.Reservation, "0"), 409, `the reservation was settled with another count before; the first count stays in force`},
		exchangeStep{0, "/v1/limit", settleBody(b.Reservation, "2"), 200, both},
		exchangeStep{0, "/v1/limit", settleBody(b.Reservation, "2"), 200, both},
		exchangeStep{0, "/v1/limit", settleBody(b.Limits[0].Reservation, "0"), 409, `the reservation was settled with another count before; the first count stays in force`},
		exchangeStep{0, "/v1/limit", settleBody(c.Reservation, "45"), 400, `limit "tokens": the cost is 41, but the limit can never hold more than 30`},
		exchangeStep{0, "/v1/limit", settleBody(c.Reservation, "34"), 429, // the limit hourly is charged; the settlement of tokens can be repeated
			`{"ok":false,"retry_after_ms":24000,"limits":[{"name":"tokens","key":"c","ok":false,"remaining":6,"limit":10,"reset_after_ms":24000,"retry_after_ms":24000},{"name":"hourly","key":"c","ok":true,"remaining":66,"limit":100,"reset_after_ms":3600000}]}`},
		exchangeStep{24_000 * ms, "/v1/limit", settleBody(c.Reservation, "34"), 200,
			`{"ok":true,"limits":[{"name":"tokens","key":"c","ok":true,"remaining":0,"limit":10,"reset_after_ms":180000},{"name":"hourly","key":"c","ok":true,"remaining":66,"limit":100,"reset_after_ms":3600000}]}`},
		exchangeStep{24_000 * ms, "/v1/check", `{"limits":[{"name":"tokens","key":"a","count":0},{"name":"hourly","key":"a","count":0}]}`, 200,
			`{"ok":true,"limits":[{"name":"tokens","key":"a","ok":true,"remaining":10,"limit":10,"reset_after_ms":0},{"name":"hourly","key":"a","ok":true,"remaining":100,"limit":100,"reset_after_ms":3576000}]}`},
	)
}

// While the store fails, a settlement must be an error, whatever on_backend_failure is, so that the client
// repeats it.
func TestASettlementWhileTheStoreFails(t *testing.T) {
	id := reserve(t, apiOver(t, memory.New(memory.Config{})), `{"name":"pass","count":1,"reserve":true}`)
	if w := call(apiOver(t, broken{backend.ErrUnavailable}), "POST", "/v1/limit", settleBody(id, "0")); w.Code != 503 {
		t.Errorf("got %d %s; want status 503", w.Code, w.Body)
	}
}

type keyed struct {
	*memory.Store
	ids [][16]byte
}

func (k *keyed) Submit(b *backend.Batch) {
	for i := range b.Charges {
		k.ids = append(k.ids, b.Charges[i].IdempotencyKey.ID)
	}
	k.Store.Submit(b)
}

// TestIDsOfApplicationsAreTheirOwn checks the idempotency key that a request_id becomes. Sidecars of all versions must
// agree on it. It must differ from the keys of package ratelimit, whose ids other programs choose.
func TestIDsOfApplicationsAreTheirOwn(t *testing.T) {
	store := &keyed{Store: memory.New(memory.Config{})}
	l := limiter.New(store, limiter.Config{})
	l.Swap(authSnapshot(t, "domain: edge\nlimits:\n  send: {algorithm: token_bucket, rate: 10, period: 1m}\n"))
	h := New(Config{API: &API{Limiter: l}})
	call(h, "POST", "/v1/limit", `{"name":"send","request_id":"call 1"}`)
	want := [][16]byte{limiter.IdempotencyID("edge", "request call 1", "0")}
	if !slices.Equal(store.ids, want) {
		t.Errorf("got the keys %x; want %x", store.ids, want)
	}
}
