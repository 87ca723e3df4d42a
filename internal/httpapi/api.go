package httpapi

import (
	"errors"
	"io"
	"net"
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
	working slots
}

func (a *API) routes(mux *http.ServeMux) {
	for path, methods := range a.paths() {
		mux.Handle(path, a.requireLocalHost(a.guard(methods)))
	}
	mux.Handle("/v1/", a.requireLocalHost(a.guard(nil)))
}

// If no token is required, requireLocalHost refuses requests for which httpauth.HasLocalHost returns false. Otherwise
// a web site could make its own name resolve to this machine. A browser would then let its pages send requests and
// read the answers.
func (a *API) requireLocalHost(next http.Handler) http.Handler {
	if a.Token != nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.Closed && !httpauth.HasLocalHost(r) {
			crossOrigin.write(w, "without a token, use an address or localhost as the host name; or start the sidecar with --api-token-file", "")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// paths lists the paths and methods that openapi.json describes.
func (a *API) paths() map[string]map[string]http.HandlerFunc {
	return map[string]map[string]http.HandlerFunc{
		"/v1/limit":         {http.MethodPost: func(w http.ResponseWriter, r *http.Request) { a.decide(w, r, false) }},
		"/v1/check":         {http.MethodPost: func(w http.ResponseWriter, r *http.Request) { a.decide(w, r, true) }},
		"/v1/renew":         {http.MethodPost: a.renew},
		"/v1/reset":         {http.MethodPost: a.reset},
		"/v1/limits":        {http.MethodGet: a.list},
		"/v1/limits/{name}": {http.MethodGet: a.show},
	}
}

// guard checks the authorization and the method of requests. If methods is nil, it answers that the path does not
// exist.
func (a *API) guard(methods map[string]http.HandlerFunc) http.Handler {
	var origin http.CrossOriginProtection
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		switch handle := methods[method]; {
		case a.Closed:
			w.Header().Set("WWW-Authenticate", "Bearer")
			unauthorized.write(w, "this port can be reached from other machines and has no token; start the sidecar with --api-token-file, or have it listen on 127.0.0.1", "")
		case a.Token != nil && !httpauth.HasToken(r, a.Token):
			w.Header().Set("WWW-Authenticate", "Bearer")
			unauthorized.write(w, "", "")
		case methods == nil:
			unknownPath.write(w, "", "")
		case handle == nil:
			for allowed := range methods {
				w.Header().Add("Allow", allowed)
			}
			wrongMethod.write(w, "", "")
		case origin.Check(r) != nil: // r comes from a web page of another origin; without a token, only this check refuses it
			crossOrigin.write(w, "", "")
		case a.Token == nil && method != http.MethodGet && formType(r):
			wrongType.write(w, sendJSON, "")
		default:
			handle(w, r)
		}
	})
}

func (a *API) decide(w http.ResponseWriter, r *http.Request, dryRun bool) {
	body, ok := readBody(w, r)
	if !ok || !a.working.enter(r.Context()) {
		return
	}
	defer a.working.leave()
	req, err := parseRequest(body)
	switch {
	case err != nil:
		malformed.write(w, err.Error(), "")
		return
	case req.settles && !dryRun:
		a.settle(w, r, req)
		return
	case req.settles || req.id != "" && dryRun:
		malformed.write(w, "reservation and request_id belong to /v1/limit: a dry run consumes nothing", "")
		return
	}
	if err := a.limit(r, req, dryRun); err != nil {
		mistake(w, err)
		return
	}
	a.answer(w, req)
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

func (a *API) settle(w http.ResponseWriter, r *http.Request, req *apiRequest) {
	if req.reservation == limiter.None {
		a.answer(w, req)
		return
	}
	var of limiter.Reserved
	if !a.open(w, req.reservation, &of) {
		return
	}
	if !req.counted && slices.ContainsFunc(of.Parts, func(p limiter.ReservedPart) bool { return p.TTL == 0 }) {
		malformed.write(w, "has a reservation without a count; add the real cost as count", "")
		return
	}
	req.call.Arrived, req.call.Listener = time.Now(), limiter.OverHTTP
	err := a.Limiter.Settle(r.Context(), req.call, limiter.Settle{Reserved: &of, Real: req.count, Costs: req.costs, Inline: a.inlineOf})
	switch name := of.Parts[0].Name; {
	case errors.Is(err, backend.ErrReused):
		settled.write(w, "the reservation was settled with another count before; the first count stays in force", name)
	case errors.Is(err, limiter.ErrExpired):
		expired.write(w, limiter.ErrExpired.Error(), name)
	case errors.Is(err, limiter.ErrChanged):
		expired.write(w, err.Error(), name)
	case err != nil:
		mistake(w, err)
	case req.call.Failed && len(req.call.Results) == 0: // the return of a slot
		unavailable.write(w, "the backend did not answer in time; the return of the slot is repeated for a few seconds", "")
	default:
		a.answer(w, req)
	}
}

// open decodes id to of. It returns false after it has counted a bad id, and has answered with a problem.
func (a *API) open(w http.ResponseWriter, id string, of *limiter.Reserved) bool {
	if a.Limiter.Open(id, of) {
		return true
	}
	a.Limiter.CountBadID()
	unknownReservation.write(w, "reservation "+reservation.ErrForged.Error(), "")
	return false
}

// renew renews the slots of a reservation.
func (a *API) renew(w http.ResponseWriter, r *http.Request) {
	body, ok := readBody(w, r)
	if !ok || !a.working.enter(r.Context()) {
		return
	}
	defer a.working.leave()
	id, err := parseRenewal(body)
	if err != nil {
		malformed.write(w, err.Error(), "")
		return
	}
	var of limiter.Reserved
	if !a.open(w, id, &of) {
		return
	}
	outcomes := a.Limiter.Renew(r.Context(), &of)
	switch {
	case len(outcomes) == 0:
		malformed.write(w, "the reservation has no slots, so there is nothing to renew", "")
	case slices.Contains(outcomes, limiter.SlotFailed):
		unavailable.write(w, "the backend did not answer in time; renew again", "")
	case slices.Contains(outcomes, limiter.SlotForeign):
		unknownReservation.write(w, "the slot is in the memory of another process", "")
	case slices.Contains(outcomes, limiter.SlotLost):
		expired.write(w, "a slot of the reservation was returned or has expired, so other requests may have taken its units", "")
	default:
		send(w, http.StatusOK, "application/json", done{OK: true})
	}
}

func (a *API) reset(w http.ResponseWriter, r *http.Request) {
	body, ok := readBody(w, r)
	if !ok || !a.working.enter(r.Context()) {
		return
	}
	defer a.working.leave()
	domain, req, err := parseReset(body)
	if err != nil {
		malformed.write(w, err.Error(), "")
		return
	}
	c := &limiter.Call{Request: limiter.Request{Domain: domain, Limits: []limiter.NamedCharge{req}}}
	if err := a.Limiter.Reset(r.Context(), c); err != nil {
		mistake(w, err)
		return
	}
	send(w, http.StatusOK, "application/json", done{OK: true})
}

type done struct {
	OK bool `json:"ok"`
}

func mistake(w http.ResponseWriter, err error) {
	mistake, ok := errors.AsType[*limiter.RequestError](err)
	switch {
	case errors.Is(err, backend.ErrReused):
		reusedID.write(w, "request_id: it was used for another request; use a new one for each request", "")
	case errors.Is(err, backend.ErrPending):
		inProgress.write(w, "the same request_id is being decided, or its outcome is unknown; nothing was consumed now; repeat the request later", "")
	case errors.Is(err, backend.ErrUnavailable): // the text of the error contains addresses, which clients must not see
		unavailable.write(w, "the backend did not answer in time; the request may or may not have been charged; repeat it with a request_id", "")
	case !ok:
		unavailable.write(w, err.Error(), "")
	case mistake.Missing:
		unknownLimit.write(w, mistake.Problem, "")
	default:
		unusable.write(w, mistake.Problem, "")
	}
}

// readBody reads the whole body. If it returns false, it has answered with the error.
func readBody(w http.ResponseWriter, r *http.Request) (body []byte, ok bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequestBody))
	if err == nil {
		return body, true
	}
	_, large := errors.AsType[*http.MaxBytesError](err)
	timeout, slow := errors.AsType[net.Error](err)
	switch {
	case large:
		tooLarge.write(w, "the body must be at most 64 KiB", "")
	case slow && timeout.Timeout():
		tooSlow.write(w, "", "")
	default:
		malformed.write(w, "the body ends too early", "")
	}
	return nil, false
}
