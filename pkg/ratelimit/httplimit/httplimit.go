// Package httplimit is middleware for net/http that applies a limit of package ratelimit to each request.
//
//	limit, err := httplimit.New(limiter, httplimit.Config{
//		Limit: "requests",
//		Key:   httplimit.ByAddress(netip.MustParsePrefix("10.0.0.0/8")), // trusted proxies
//	})
//	…
//	http.ListenAndServe(":8080", limit(mux))
//
// The answers to allowed and denied requests have the headers RateLimit-Policy and RateLimit. In RateLimit, r is
// the number of units left. t is the number of seconds until the bucket is full again, or, for a denied request,
// until the request can be repeated.
//
// Denied requests are answered with 429, Retry-After and problem details (RFC 9457), and requests that can never
// fit with 413. If the Store cannot decide, requests are answered with 503, unless Config.FailOpen is set.
//
// With a leaky bucket, the middleware waits for the turn of a request before it calls the handler. If the
// context of the request ends before, the handler is not called; the units stay consumed.
//
// With a limit of units in flight (ratelimit.Concurrency), the middleware releases the slot of a request when the
// handler returns or panics. A denied request has neither Retry-After nor t.
//
// Middleware for several limits can be nested. A denial by an inner limit does not refund the outer ones.
package httplimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/delay"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

// Config configures the middleware. Its functions must be safe for concurrent use.
type Config struct {
	// Limit is the name of the limit.
	Limit string
	// Key returns the key of the bucket for a request. See ByAddress, ByHeader, ByValue and By. With a nil
	// Key all requests share one bucket.
	Key KeyFunc
	// Cost returns the units that a request consumes, at least 1; nil means 1.
	Cost func(r *http.Request) int64
	// FailOpen allows requests that the Store cannot decide (ErrUnavailable, ErrFull). The default is to
	// deny them. Other errors, such as a Cost below 1 and errors of Key except ErrNoKey, are answered with 503
	// in any case.
	FailOpen bool
	// OnError, if not nil, is called with errors other than ErrDenied and ErrNeverFits, for logging.
	OnError func(r *http.Request, err error)
}

// New returns middleware that applies a limit of limiter. It returns an error if the limiter has no such limit.
func New(limiter *ratelimit.Limiter, c Config) (func(http.Handler) http.Handler, error) {
	if !limiter.Has(c.Limit) {
		return nil, fmt.Errorf("httplimit: %w: %q", ratelimit.ErrUnknown, c.Limit)
	}
	return func(next http.Handler) http.Handler {
		return &handler{limiter: limiter, config: c, next: next}
	}, nil
}

type handler struct {
	limiter *ratelimit.Limiter
	config  Config
	next    http.Handler
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	result, slot, err := h.decide(r)
	if slot != nil {
		defer slot.Release()
	}
	switch {
	case err == nil:
		h.headers(w.Header(), &result, result.ResetAfter)
		if result.Wait > 0 && delay.For(r.Context(), result.Wait) != nil {
			write(w, http.StatusServiceUnavailable, "The request ended before its turn", "try again later")
			return
		}
		h.next.ServeHTTP(w, r)
	case errors.Is(err, ratelimit.ErrDenied) && h.limiter.Acquires(h.config.Limit):
		write(w, http.StatusTooManyRequests, "Too many requests in flight", "try again later")
	case errors.Is(err, ratelimit.ErrDenied):
		h.headers(w.Header(), &result, result.RetryAfter)
		w.Header().Set("Retry-After", strconv.FormatInt(max(1, seconds(result.RetryAfter)), 10))
		write(w, http.StatusTooManyRequests, "Too many requests", "try again after "+result.RetryAfter.Round(time.Millisecond).String())
	case errors.Is(err, ratelimit.ErrNeverFits):
		write(w, http.StatusRequestEntityTooLarge, "The request exceeds the rate limit", "it needs more units than the limit can ever supply")
	default:
		h.failed(w, r, err)
	}
}

// decide returns the slot that the request has taken, or nil.
func (h *handler) decide(r *http.Request) (result ratelimit.Result, slot *ratelimit.Slot, err error) {
	var key [4]string
	values := key[:0]
	if h.config.Key != nil {
		if values, err = h.config.Key(r, values); err != nil {
			return result, nil, err
		}
	}
	cost := int64(1)
	if h.config.Cost != nil {
		cost = h.config.Cost(r)
	}
	if !h.limiter.Acquires(h.config.Limit) {
		result, err = h.limiter.AllowN(r.Context(), cost, h.config.Limit, values...)
		return result, nil, err
	}
	if slot, err = h.limiter.AcquireN(r.Context(), cost, h.config.Limit, values...); err == nil {
		result = slot.Result()
	}
	return result, slot, err
}

func (h *handler) failed(w http.ResponseWriter, r *http.Request, err error) {
	if h.config.OnError != nil {
		h.config.OnError(r, err)
	}
	switch {
	case errors.Is(err, ErrNoKey):
		write(w, http.StatusBadRequest, "The request cannot be limited", "a value that the rate limit needs is missing or repeated")
	case h.config.FailOpen && (errors.Is(err, ratelimit.ErrUnavailable) || errors.Is(err, ratelimit.ErrFull)):
		h.next.ServeHTTP(w, r)
	default:
		write(w, http.StatusServiceUnavailable, "The rate limit could not be decided", "try again later")
	}
}

// headers adds an item to RateLimit-Policy and one to RateLimit (draft-ietf-httpapi-ratelimit-headers).
// Both are lists, because a request may pass several limits. reset is the parameter t of RateLimit.
func (h *handler) headers(header http.Header, result *ratelimit.Result, reset time.Duration) {
	name := quoted(h.config.Limit)
	policy := name + ";q=" + strconv.FormatInt(clamp(result.Limit), 10)
	if result.Window > 0 {
		policy += ";w=" + strconv.FormatInt(seconds(result.Window), 10)
	}
	header.Add("RateLimit-Policy", policy)
	item := name + ";r=" + strconv.FormatInt(clamp(result.Remaining), 10)
	if !h.limiter.Acquires(h.config.Limit) {
		item += ";t=" + strconv.FormatInt(seconds(reset), 10)
	}
	header.Add("RateLimit", item)
}

// quoted returns text as a String of RFC 9651, with characters that a String cannot contain replaced.
func quoted(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(text) {
		switch c := text[i]; {
		case c < ' ' || c > '~':
			b.WriteByte('_')
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// clamp bounds n to the integers of RFC 9651.
func clamp(n int64) int64 { return max(0, min(n, 999_999_999_999_999)) }

// seconds returns d in whole seconds, rounded up. d may be the longest Duration, which stands for all longer times.
func seconds(d time.Duration) int64 {
	whole := int64(d / time.Second)
	if d%time.Second > 0 {
		whole++
	}
	return whole
}

// write answers with problem details (RFC 9457). They contain no bytes from the client.
func write(w http.ResponseWriter, code int, title, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(struct { // an error only means that the client has gone
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{title, code, detail})
}
