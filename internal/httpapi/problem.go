package httpapi

import (
	"encoding/json"
	"net/http"
)

// problem is the body of an answer that is not a decision (RFC 9457).
type problem struct {
	// Type identifies the kind of problem for programs: urn:rlsidecar:problem:KIND.
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	// Detail describes this occurrence of the problem in words.
	Detail string `json:"detail,omitempty"`
	Limit  string `json:"limit,omitempty"`
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
)

// write answers with a problem of kind k. limit may be "".
func (k kind) write(w http.ResponseWriter, detail, limit string) {
	if k == unavailable || k == inProgress {
		w.Header().Set("Retry-After", "1")
	}
	send(w, k.status, "application/problem+json", problem{
		Type: "urn:rlsidecar:problem:" + k.name, Title: k.title, Status: k.status, Detail: detail, Limit: limit,
	})
}

// send writes v as JSON. v must be encodable.
func send(w http.ResponseWriter, code int, contentType string, v any) {
	body, _ := json.Marshal(v)
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write(body) // an error only means that the client has disconnected
}
