package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// So little flows in during a history that the model need not know the time.
const historyLimits = `
hash_tag: domain
limits:
  tokens: {algorithm: token_bucket, rate: 100, period: 365d, max_reserved: 0}
  daily:  {algorithm: fixed_window, rate: 100, period: 365d, start: 2026-01-01T00:00:00Z, max_reserved: 0}
  known:  {algorithm: token_bucket, rate: 100, period: 365d, max_reserved: 0, settle: {estimate: 10, max_debt: 300}}
`

var historyNames = []string{"tokens", "daily", "known"}

// bucketModel counts what was consumed of a bucket since it was new or reset, less what was refunded.
type bucketModel struct{ consumed int64 }

type openReservation struct {
	limit     string
	count     int64
	charged   bool  // false if the limit was unlimited
	resets    int   // how often the bucket had been reset
	settledTo int64 // -1: it was not settled yet
	id        string
}

type remembered struct {
	body, answer string
}

type history struct {
	*onStore
	t          *rapid.T
	models     map[string]*bucketModel
	resets     map[string]int
	adjusted   string // the limit of bob that has an adjustment
	block      bool
	open       []*openReservation
	repeatable []remembered
	n          int
}

func (h *history) draw(least, most int, what string) int64 {
	return int64(rapid.IntRange(least, most).Draw(h.t, what))
}

func (h *history) send(body string) (*httptest.ResponseRecorder, apiReply) {
	var answer apiReply
	w := call(h, "POST", "/v1/limit", body)
	_ = json.Unmarshal(w.Body.Bytes(), &answer)
	return w, answer
}

// take sends a request, with or without an id, which may reserve.
func (h *history) take() {
	h.n++
	limit, count, reserve := rapid.SampledFrom(historyNames).Draw(h.t, "limit"), h.draw(1, 60, "count"), h.draw(0, 1, "reserve") == 1
	body := fmt.Sprintf(`{"name":%q,"key":"bob","count":%d,"reserve":%t,"request_id":"%d"}`, limit, count, reserve, h.n)
	model := h.models[limit]
	w, answer := h.send(body)
	adjusted := h.adjusted == limit
	want := 200
	if adjusted && h.block || !adjusted && model.consumed+count > 100 {
		want = 429
	}
	if w.Code != want && (adjusted || !h.isClose(limit, count)) {
		h.t.Fatalf("%s: got %d %s; want %d with %d of 100 consumed", body, w.Code, w.Body, want, model.consumed)
	}
	if w.Code != 200 {
		return
	}
	if !adjusted {
		model.consumed += count
		h.repeatable = append(h.repeatable, remembered{body, w.Body.String()})
	}
	if reserve {
		h.open = append(h.open, &openReservation{limit, count, !adjusted, h.resets[limit], -1, answer.Reservation})
	}
}

// settle settles a reservation, perhaps again and to another cost.
func (h *history) settle() {
	if len(h.open) == 0 {
		return
	}
	r := rapid.SampledFrom(h.open).Draw(h.t, "reservation")
	real := h.draw(0, 130, "real")
	model := h.models[r.limit]
	w, _ := h.send(settleBody(r.id, fmt.Sprint(real)))
	difference, unlimited := real-r.count, h.adjusted == r.limit && !h.block
	switch {
	case !r.charged: // the id none
		h.code(w, 200)
		return
	case r.settledTo == real:
		h.code(w, 200)
		return
	case r.settledTo >= 0:
		h.code(w, 409)
		return
	case difference > 0 && unlimited:
		difference = 0
	case difference > 0 && r.limit != "known" && (w.Code == 429 || w.Code == 400): // decided like a request
		if model.consumed+difference <= 100 && !h.isClose(r.limit, difference) {
			h.t.Fatalf("%d more with %d of 100 consumed: got %d %s; want 200", difference, model.consumed, w.Code, w.Body)
		}
		return
	case difference > 0 && r.limit != "known" && model.consumed+difference > 100 && !h.isClose(r.limit, difference):
		h.t.Fatalf("%d more with %d of 100 consumed: got %d %s; want a denial", difference, model.consumed, w.Code, w.Body)
	case difference < 0 && r.resets != h.resets[r.limit]: // the reset has forgiven the units
		difference = 0
	}
	h.code(w, 200)
	r.settledTo = real
	before := model.consumed
	model.consumed += difference
	if difference > 0 && r.limit == "known" {
		model.consumed = max(before, min(model.consumed, 400)) // max_debt is 300
	}
	if difference < 0 && r.limit != "daily" { // the refund is less the inflow; with settle, a bucket with many charges may refund less
		consumed := 100 - h.leftOf(r.limit)
		if consumed < model.consumed-1 || r.limit == "tokens" && consumed > model.consumed+1 || consumed > before+1 {
			h.t.Fatalf("%d of %d consumed were refunded; want at most %d", before-consumed, before, -difference)
		}
		model.consumed = consumed
	}
}

// isClose reports whether the fraction of a unit that flowed in or was not refunded decides whether count more fit.
func (h *history) isClose(limit string, count int64) bool {
	over := h.models[limit].consumed + count - 100
	return limit != "daily" && (over == 0 || over == 1)
}

func (h *history) code(w *httptest.ResponseRecorder, want int) {
	if w.Code != want {
		h.t.Fatalf("got %d %s; want %d", w.Code, w.Body, want)
	}
}

// repeat sends an earlier request again. It gets the first answer, whatever happened since.
func (h *history) repeat() {
	if len(h.repeatable) == 0 {
		return
	}
	r := rapid.SampledFrom(h.repeatable).Draw(h.t, "repeated")
	if w, _ := h.send(r.body); w.Code != 200 || w.Body.String() != r.answer {
		h.t.Fatalf("repeated %s: got %d %s; want %s", r.body, w.Code, w.Body, r.answer)
	}
}

func (h *history) resetOne() {
	limit := rapid.SampledFrom(historyNames).Draw(h.t, "reset")
	if w := call(h, "POST", "/v1/reset", `{"name":"`+limit+`","key":"bob"}`); w.Code != 200 {
		h.t.Fatalf("reset: got %d %s", w.Code, w.Body)
	}
	h.models[limit].consumed = 0
	h.resets[limit]++
}

func (h *history) adjustOne() {
	h.adjusted = rapid.SampledFrom(append([]string{""}, historyNames...)).Draw(h.t, "adjusted")
	h.block = h.draw(0, 1, "block") == 1
	h.adjust(h.adjusted, adjust.Change{Block: h.block, Unlimited: !h.block})
}

// Random histories of requests, reservations, settlements, repetitions, resets and adjustments of one key agree with a
// model that counts units. So nothing is refunded that was not consumed, and nothing is consumed without an answer
// that says so.
func TestHistoriesAgreeWithAModel(t *testing.T) {
	check := func(t *testing.T, fresh func() *onStore) {
		t.Helper()
		rapid.Check(t, func(rt *rapid.T) {
			h := &history{onStore: fresh(), t: rt, models: map[string]*bucketModel{}, resets: map[string]int{}}
			h.clock.Set(storetest.Start)
			for _, limit := range historyNames {
				h.models[limit] = &bucketModel{}
			}
			steps := []func(){h.take, h.take, h.take, h.settle, h.settle, h.repeat, h.resetOne, h.adjustOne}
			for range rapid.IntRange(1, 40).Draw(rt, "steps") {
				h.clock.Set(h.clock.Now() + algorithms.Micros(1+h.draw(0, 1000, "us")))
				steps[h.draw(0, len(steps)-1, "step")]()
			}
			h.adjust("", adjust.Change{})
			for _, limit := range historyNames {
				if left, want := h.leftOf(limit), 100-h.models[limit].consumed; left != want && (limit == "daily" || left != want+1 && left != want-1) {
					rt.Fatalf("%s: %d left; want %d", limit, left, want)
				}
			}
		})
	}
	t.Run("memory", func(t *testing.T) {
		check(t, func() *onStore { return inMemory(t, historyLimits, 0) })
	})
	t.Run("redis", func(t *testing.T) {
		server, clock := redistest.Start(t), &storetest.Clock{}
		clock.Set(storetest.Start)
		s := on(t, openRedisAt(t, server, clock), clock, historyLimits)
		check(t, func() *onStore {
			server.Do("FLUSHALL")
			s.adjust("", adjust.Change{})
			return s
		})
	})
}
