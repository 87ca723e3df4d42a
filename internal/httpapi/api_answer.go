package httpapi

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"unicode/utf8"

	"github.com/rlsidecar/rlsidecar/internal/clientreply"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// apiAnswer is the decision on a request. Times are in ms, rounded up.
type apiAnswer struct {
	OK bool `json:"ok"`
	// RetryAfter is the time until the same request can succeed; absent if ok.
	RetryAfter int64 `json:"retry_after_ms,omitempty"`
	// Wait is the time until reserved units are available, or until the turn in a leaky bucket.
	Wait int64 `json:"wait_ms,omitempty"`
	// Reservation is the id of all units that the request has reserved.
	Reservation string `json:"reservation,omitempty"`
	// Degraded means that the store could not decide a limit, so that its on_backend_failure applied.
	Degraded bool          `json:"degraded,omitempty"`
	Limits   []limitAnswer `json:"limits"`
	// Slots has the outcome of each slot that the request returns: returned, gone or foreign.
	Slots []string `json:"slots,omitempty"`

	call *limiter.Call
	sets HeaderSets
	// jitterDelay, in ms, was added to all times of the answer. It is added to Retry-After, but to no other header.
	jitterDelay int64
}

type limitAnswer struct {
	Name string `json:"name"`
	Key  key    `json:"key,omitempty"`
	// Payer is the limit that paid, if that is another limit. The numbers are then those of the payer's
	// bucket.
	Payer string `json:"payer,omitempty"`
	// OK is the limit's own decision, even if it does not affect the answer to the request.
	OK bool `json:"ok"`
	// Shadow means that a denial by this limit does not affect the answer to the request.
	Shadow bool `json:"shadow,omitempty"`
	// Remaining and ResetAfter are absent if the state of the bucket is unknown.
	Remaining   *int64 `json:"remaining,omitempty"`
	Limit       int64  `json:"limit"`
	ResetAfter  *int64 `json:"reset_after_ms,omitempty"`
	RetryAfter  int64  `json:"retry_after_ms,omitempty"`
	Wait        int64  `json:"wait_ms,omitempty"`
	Reservation string `json:"reservation,omitempty"`
	// TTL is the time after which the slot that was taken expires, unless it is renewed.
	TTL      int64 `json:"ttl_ms,omitempty"`
	Degraded bool  `json:"degraded,omitempty"`
}

// key has the values that identify a bucket: a single one as a string, several as a list.
type key []string

// MarshalJSON writes bytes that are not UTF-8 as {"base64": "…"}, which requests accept too.
func (k key) MarshalJSON() ([]byte, error) {
	values := make([]any, len(k))
	for i, v := range k {
		if values[i] = v; !utf8.ValidString(v) {
			values[i] = map[string]string{"base64": base64.StdEncoding.EncodeToString([]byte(v))}
		}
	}
	if len(values) == 1 {
		return json.Marshal(values[0])
	}
	return json.Marshal(values)
}

func (k *key) UnmarshalJSON(data []byte) error {
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	for _, v := range list {
		switch v := v.(type) {
		case string:
			*k = append(*k, v)
		case map[string]any:
			coded, _ := v["base64"].(string)
			raw, err := base64.StdEncoding.DecodeString(coded)
			if err != nil {
				return err
			}
			*k = append(*k, string(raw))
		default:
			return fmt.Errorf("a key is %v", v)
		}
	}
	return nil
}

// String returns the values with the bytes escaped that must not reach a terminal.
func (k key) String() string { return descriptors.PrintableList(k, ",") }

func (a *API) answer(req *apiRequest) (*apiAnswer, error) {
	c := req.call
	if r := neverOf(c); r != nil {
		name := c.Limits[r.Descriptor].Name
		cost, most := costOf(c, r)
		return nil, neverFits.of(name, fmt.Sprintf("limit %q: the cost is %d, but the limit can never hold more than %d", name, cost, most))
	}
	if err := undecided(c); err != nil {
		detail := "the backend did not decide in time; units may have been consumed: to repeat the request and be charged once, send a request_id"
		switch {
		case errors.Is(err, backend.ErrFull):
			detail = "the memory of the sidecar has no room for another bucket or request_id, so nothing was consumed; raise --memory-max-keys, let ids be remembered for a shorter time (remember), or keep them in Redis (--redis-url)"
		case c.DryRun:
			detail = "the backend did not decide in time; nothing was consumed; try again"
		case req.settles:
			detail = "the backend did not answer in time; repeat the request: a reservation is settled once"
		case req.id != "":
			detail = "the backend did not decide in time; units may have been consumed: repeat the request with its request_id to be charged once"
		}
		return nil, unavailable.because(detail)
	}
	answer := a.answerOf(req)
	answer.call, answer.sets, answer.jitterDelay = c, a.Headers, req.jitterDelay()
	answer.addDelay()
	return answer, nil
}

// head implements headed.
func (a *apiAnswer) head(h http.Header) int {
	var l lines
	l.verdict(a.sets, &a.call.Verdict)
	if a.call.Denied && !a.call.Busy {
		l.number("Retry-After", max(1, wholeSeconds(a.call.RetryAfter+algorithms.Micros(a.jitterDelay)*1000)))
	}
	l.write(h)
	if a.call.Replayed {
		h.Set("Idempotent-Replayed", "true")
	}
	switch {
	case a.call.Denied:
		return http.StatusTooManyRequests
	case a.Wait > 0:
		return http.StatusAccepted
	default:
		return http.StatusOK
	}
}

// jitterDelay returns the delay of the times in the answer, in ms, so that clients with the same retry time do not
// all return at once. Times never become earlier. A repeated request with the same id gets the same delay.
func (req *apiRequest) jitterDelay() int64 {
	if req.id == "" || req.jitter == 0 {
		return rand.Int64N(req.jitter + 1)
	}
	digest := limiter.IdempotencyID("jitter", req.id)
	return int64(binary.BigEndian.Uint64(digest[:8]) % uint64(req.jitter+1))
}

// addDelay adds the jitter to the retry and wait times that are not 0.
func (a *apiAnswer) addDelay() {
	move := func(at *int64) {
		if *at > 0 {
			*at += a.jitterDelay
		}
	}
	move(&a.RetryAfter)
	move(&a.Wait)
	for i := range a.Limits {
		move(&a.Limits[i].RetryAfter)
		move(&a.Limits[i].Wait)
	}
}

func neverOf(c *limiter.Call) *limiter.Result {
	if !c.Never {
		return nil
	}
	for i := range c.Results {
		if r := &c.Results[i]; c.Denies(r) && r.Decision.Never {
			return r
		}
	}
	return nil
}

// costOf returns the total cost for r's bucket, and the largest cost that its limit can ever allow. Units that can be
// reserved ahead count for the latter only if all charges of the bucket reserve.
func costOf(c *limiter.Call, r *limiter.Result) (cost, most int64) {
	reserve := true
	for i := range c.Results {
		if other := &c.Results[i]; string(other.Key) == string(r.Key) {
			cost += other.Cost
			reserve = reserve && c.Limits[other.Descriptor].Reserve
		}
	}
	return cost, clientreply.Limit(r).Most(reserve)
}

func failed(r *limiter.Result) bool {
	return r.Outcome == limiter.FailedAllowed || r.Outcome == limiter.FailedDenied
}

// undecided returns the store's error if it is the reason for the denial. It returns nil if a limit denies
// by itself.
func undecided(c *limiter.Call) (err error) {
	if !c.Denied {
		return nil
	}
	for i := range c.Results {
		r := &c.Results[i]
		switch {
		case !c.Denies(r):
		case r.Decision.Err == nil:
			return nil
		default:
			err = r.Decision.Err
		}
	}
	return err
}

func (a *API) answerOf(req *apiRequest) *apiAnswer {
	c := req.call
	answer := &apiAnswer{OK: !c.Denied, RetryAfter: millis(c.RetryAfter), Limits: make([]limitAnswer, len(c.Results))}
	for i := range c.Results {
		l := answerOfLimit(c, &c.Results[i])
		answer.Degraded = answer.Degraded || l.Degraded
		if req.settles { // the work is done already, so there is nothing to wait for
			l.Wait = 0
		}
		if answer.OK {
			answer.Wait = max(answer.Wait, l.Wait)
		}
		answer.Limits[i] = l
	}
	for _, outcome := range c.SlotOutcomes {
		answer.Slots = append(answer.Slots, outcome.String())
	}
	if answer.OK && !req.settles && !c.DryRun {
		a.identify(answer, req)
	}
	return answer
}

func answerOfLimit(c *limiter.Call, r *limiter.Result) limitAnswer {
	named := &c.Limits[r.Descriptor]
	l := limitAnswer{Name: named.Name, Key: named.Key, Shadow: r.Policy.Shadow, Degraded: failed(r)}
	if r.For != nil {
		l.Payer = r.Policy.Name
	}
	d := &r.Decision
	if d.Err != nil {
		l.OK = !r.Outcome.Denies()
		l.Limit, _ = limiter.Shown(r.Policy.Limit)
		return l
	}
	l.OK = d.Allowed || r.Outcome == limiter.Unlimited
	l.Limit, _ = limiter.Shown(clientreply.Limit(r))
	if r.Outcome == limiter.Unlimited { // the bucket was not read
		return l
	}
	l.Remaining = &d.Remaining
	if r.Policy.Limit.Kind != algorithms.Concurrency { // nobody knows when slots are returned
		reset := millis(d.ResetAfter)
		l.ResetAfter = &reset
	}
	l.RetryAfter = millis(d.RetryAfter)
	if d.Allowed && (named.Reserve || r.Policy.Limit.Kind == algorithms.LeakyBucket) {
		l.Wait = millis(d.Wait)
	}
	return l
}

// millis returns d in whole milliseconds, rounded up.
func millis(d algorithms.Micros) int64 { return int64((d + 999) / 1000) }

// identify adds the ids of the reserved units of req, which was allowed: one id for each limit, and one for all
// limits unless there are more than limiter.MaxReserved. All have the same Reserved.ID, so each limit is settled
// once, whichever id a client uses.
func (a *API) identify(answer *apiAnswer, req *apiRequest) {
	c := req.call
	all := limiter.Reserved{Domain: limiter.PrefixNumber(c.Verdict.Domain.Name)}
	var results []int // the result of each part
	for i := range c.Results {
		descriptor := c.Results[i].Descriptor
		if !c.Limits[descriptor].Reserve {
			continue
		}
		if part, ok := c.Part(i, string(req.configs[descriptor])); ok {
			part.Number = i
			all.Parts, results = append(all.Parts, part), append(results, i)
		} else if r := &c.Results[i]; r.Outcome == limiter.Unlimited { // the client needs an id, although there is nothing to settle
			answer.Reservation, answer.Limits[i].Reservation = limiter.None, limiter.None
		} else if r.For != nil { // the payer paid the larger cost of another limit
			answer.Reservation = limiter.None
		}
	}
	for i, part := range c.Slots() {
		all.ID, answer.Limits[i].TTL = c.SlotID(), millis(part.TTL)
		all.Parts, results = append(all.Parts, part), append(results, i)
	}
	if len(results) == 0 {
		return
	}
	if req.id != "" && all.ID == ([16]byte{}) { // a repeated request must get the same id
		all.ID = limiter.IdempotencyID("reservation", req.id)
	}
	if len(results) <= limiter.MaxReserved {
		answer.Reservation = a.Limiter.ID(&all)
	}
	for n, i := range results {
		answer.Limits[i].Reservation = answer.Reservation
		if len(results) > 1 {
			one := limiter.Reserved{ID: all.ID, Domain: all.Domain, Parts: all.Parts[n : n+1]}
			answer.Limits[i].Reservation = a.Limiter.ID(&one)
			all.ID = one.ID
		}
	}
}
