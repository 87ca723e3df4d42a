package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// problem is the body of an answer that is not a decision (RFC 9457), and the error of an operation.
type problem struct {
	// Type identifies the kind of problem for programs: urn:rlsidecar:problem:KIND.
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	// Detail describes this occurrence of the problem in words.
	Detail string `json:"detail,omitempty"`
	Limit  string `json:"limit,omitempty"`

	kind kind
}

type kind struct {
	name, title string
	status      int
}

var (
	malformed          = kind{"malformed", "The request cannot be read", http.StatusBadRequest}
	unusable           = kind{"unusable", "The limit cannot be charged this way", http.StatusBadRequest}
	neverFits          = kind{"never-fits", "The cost is more than the limit can ever hold", http.StatusBadRequest}
	unauthorized       = kind{"unauthorized", "A valid bearer token is required", http.StatusUnauthorized}
	crossOrigin        = kind{"cross-origin", "Web pages of other sites are refused", http.StatusForbidden}
	unknownLimit       = kind{"unknown-limit", "There is no such limit", http.StatusNotFound}
	unknownPath        = kind{"unknown-path", "There is no such path", http.StatusNotFound}
	wrongMethod        = kind{"wrong-method", "The path does not support this method", http.StatusMethodNotAllowed}
	unknownReservation = kind{"unknown-reservation", "There is no such reservation", http.StatusNotFound}
	expired            = kind{"expired", "The reservation can no longer be settled", http.StatusGone}
	settled            = kind{"settled", "The reservation is settled", http.StatusConflict}
	inProgress         = kind{"under-way", "A request with the same id is in flight", http.StatusConflict}
	reusedID           = kind{"reused-id", "The id was used for another request", http.StatusUnprocessableEntity}
	tooSlow            = kind{"too-slow", "The request did not arrive in time", http.StatusRequestTimeout}
	wrongType          = kind{"wrong-type", "The path does not support this content type", http.StatusUnsupportedMediaType}
	tooLarge           = kind{"too-large", "The request is too large", http.StatusRequestEntityTooLarge}
	unavailable        = kind{"unavailable", "The store could not decide", http.StatusServiceUnavailable}

	refused          = kind{"forbidden", "Changes need the admin token", http.StatusForbidden}
	noAdjustment     = kind{"unknown-adjustment", "There is no such adjustment", http.StatusNotFound}
	concurrentChange = kind{"conflict", "The adjustments have changed", http.StatusConflict}
	wrongAdjustment  = kind{"wrong-adjustment", "The adjustment cannot be made", http.StatusBadRequest}
)

// because returns the problem of this kind with a detail.
func (k kind) because(detail string) *problem { return k.of("", detail) }

// of does what because does for a request to a limit.
func (k kind) of(limit, detail string) *problem {
	return &problem{"urn:rlsidecar:problem:" + k.name, k.title, k.status, detail, limit, k}
}

func (p *problem) Error() string { return p.Detail }

func (p *problem) write(w http.ResponseWriter) {
	switch p.kind {
	case unauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case unavailable, inProgress:
		w.Header().Set("Retry-After", "1")
	}
	send(w, p.Status, "application/problem+json", p)
}

// problemOf returns err as a problem. Its text may contain addresses of the store only if operators get it.
func problemOf(err error) *problem {
	var is *problem
	var mistake *limiter.RequestError
	var wrong *adjust.Mistake
	switch {
	case errors.As(err, &is):
		return is
	case errors.As(err, &mistake) && mistake.Missing:
		return unknownLimit.because(mistake.Problem)
	case errors.As(err, &mistake):
		return unusable.because(mistake.Problem)
	case errors.Is(err, backend.ErrReused):
		return reusedID.because("request_id: it was used for another request; use a new one for each request")
	case errors.Is(err, backend.ErrPending):
		return inProgress.because("the same request_id is being decided, or its outcome is unknown; nothing was consumed now; repeat the request later")
	case errors.Is(err, backend.ErrUnavailable): // of a reset. The text of the error contains addresses, which clients must not see
		return unavailable.because("the backend did not answer in time; the bucket may or may not have been reset; reset it again")
	case errors.As(err, &wrong):
		return wrongAdjustment.because(wrong.Problem)
	case errors.Is(err, adjust.ErrNotFound):
		return noAdjustment.because(err.Error())
	case errors.Is(err, adjust.ErrConflict):
		return concurrentChange.because(err.Error())
	default:
		return unavailable.because(err.Error())
	}
}

// send writes v as JSON. v must be encodable.
func send(w http.ResponseWriter, code int, contentType string, v any) {
	body, encoded := v.([]byte)
	if !encoded {
		body, _ = json.Marshal(v)
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write(body) // an error only means that the client has disconnected
}
