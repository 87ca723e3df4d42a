package httpapi

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// maxRequestBody bounds the body of a request to the API, in bytes.
const maxRequestBody = 64 << 10

// API answers applications that use named limits.
type API struct {
	Limiter *limiter.Limiter
	// Token is the bearer token that each request must have; nil means that none is required.
	Token httpauth.Token
	// Closed makes the API refuse all requests. It is set if there is no token and other machines can reach
	// the port.
	Closed  bool
	Headers HeaderSets
	// Inline compiles a limit that comes with a request; nil means that requests cannot contain limits.
	Inline func(d *limiter.Domain, name string, text []byte) (*limiter.Policy, error)

	inlines inlines
}

func (a *API) routes(mux *http.ServeMux) {
	g := &gate{token: a.Token, closed: a.Closed, localHosts: true, working: make(chan struct{}, maxWorking)}
	g.register(mux, "/v1/", a.paths())
}

// paths lists the paths and methods that openapi.json describes.
func (a *API) paths() map[string]operations {
	return map[string]operations{
		"/v1/limit":         {http.MethodPost: func(r *http.Request, body []byte) (any, error) { return a.decide(r, body, false) }},
		"/v1/check":         {http.MethodPost: func(r *http.Request, body []byte) (any, error) { return a.decide(r, body, true) }},
		"/v1/renew":         {http.MethodPost: a.renew},
		"/v1/reset":         {http.MethodPost: a.reset},
		"/v1/limits":        {http.MethodGet: a.list},
		"/v1/limits/{name}": {http.MethodGet: a.show},
	}
}

func (a *API) decide(r *http.Request, body []byte, dryRun bool) (any, error) {
	req, err := parseRequest(body)
	switch {
	case err != nil:
		return nil, malformed.because(err.Error())
	case req.settles && !dryRun:
		return a.settle(r, req)
	case req.settles || req.id != "" && dryRun:
		return nil, malformed.because("reservation and request_id belong to /v1/limit: a dry run consumes nothing")
	}
	if err := a.limit(r, req, dryRun); err != nil {
		return nil, err
	}
	return a.answer(req)
}

func (a *API) limit(r *http.Request, req *apiRequest, dryRun bool) error {
	c := req.call
	if err := a.addInlineLimit(req); err != nil {
		return err
	}
	for i := range c.Limits {
		if one := &c.Limits[i]; one.Reserve && len(strings.Join(one.Key, "")) > reservation.MaxKey {
			return &limiter.RequestError{Problem: "limit " + strconv.Quote(descriptors.Printable(one.Name)) + ": a key can be reserved only if it has 16 KiB or less"}
		}
	}
	c.DryRun, c.Returns = dryRun, true
	if req.id != "" {
		c.IdempotencyKey = limiter.IdempotencyKey{ID: "request " + req.id, Lifetime: req.remember}
	}
	c.Arrived, c.Listener = time.Now(), limiter.OverHTTP
	return a.Limiter.Check(r.Context(), c)
}

func (a *API) settle(r *http.Request, req *apiRequest) (any, error) {
	if req.reservation == limiter.None {
		return a.answer(req)
	}
	of, err := a.open(req.reservation)
	if err != nil {
		return nil, err
	}
	if !req.counted && slices.ContainsFunc(of.Parts, func(p limiter.ReservedPart) bool { return p.TTL == 0 }) {
		return nil, malformed.because("has a reservation without a count; add the real cost as count")
	}
	req.call.Arrived, req.call.Listener = time.Now(), limiter.OverHTTP
	err = a.Limiter.Settle(r.Context(), req.call, limiter.Settle{Reserved: of, Real: req.count, Costs: req.costs, Inline: a.inline})
	denies := func(r limiter.Result) bool { return req.call.Denies(&r) }
	switch name := of.Parts[0].Name; {
	case errors.Is(err, backend.ErrReused):
		return nil, settled.of(name, "the reservation was settled with another count before; the first count stays in force")
	case errors.Is(err, limiter.ErrExpired):
		return nil, expired.of(name, limiter.ErrExpired.Error())
	case errors.Is(err, limiter.ErrChanged):
		return nil, expired.of(name, err.Error())
	case err != nil:
		return nil, err
	case req.call.Failed && !slices.ContainsFunc(req.call.Results, denies): // only the return of a slot has failed
		return nil, unavailable.because("the backend did not answer in time; the return of the slot is repeated for a few seconds")
	default:
		return a.answer(req)
	}
}

// open decodes id. It counts a bad id.
func (a *API) open(id string) (*limiter.Reserved, error) {
	of := &limiter.Reserved{}
	if a.Limiter.Open(id, of) {
		return of, nil
	}
	a.Limiter.CountBadID()
	return nil, unknownReservation.because("reservation " + reservation.ErrForged.Error())
}

// renew renews the slots of a reservation.
func (a *API) renew(r *http.Request, body []byte) (any, error) {
	id, err := parseRenewal(body)
	if err != nil {
		return nil, malformed.because(err.Error())
	}
	of, err := a.open(id)
	if err != nil {
		return nil, err
	}
	outcomes := a.Limiter.Renew(r.Context(), of)
	switch {
	case len(outcomes) == 0:
		return nil, malformed.because("the reservation has no slots, so there is nothing to renew")
	case slices.Contains(outcomes, limiter.SlotFailed):
		return nil, unavailable.because("the backend did not answer in time; renew again")
	case slices.Contains(outcomes, limiter.SlotForeign):
		return nil, unknownReservation.because("the slot is in the memory of another process")
	case slices.Contains(outcomes, limiter.SlotLost):
		return nil, expired.because("a slot of the reservation was returned or has expired, so other requests may have taken its units")
	default:
		return done{OK: true}, nil
	}
}

func (a *API) reset(r *http.Request, body []byte) (any, error) {
	domain, req, err := parseReset(body)
	if err != nil {
		return nil, malformed.because(err.Error())
	}
	c := &limiter.Call{Request: limiter.Request{Domain: domain, Limits: []limiter.NamedCharge{req}}}
	return done{OK: true}, a.Limiter.Reset(r.Context(), c)
}

type done struct {
	OK bool `json:"ok"`
}
