package httpapi

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/canonical"
	"github.com/rlsidecar/rlsidecar/internal/clientreply"
	"github.com/rlsidecar/rlsidecar/internal/delay"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/routing"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/logthrottle"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// authPath is the endpoint for proxies. Paths below it are not cleaned, because ext_authz appends the path
// of its client's request, and the redirect to a clean path would count as a denial.
const authPath = "/v1/auth"

// AuthLimiter is implemented by limiter.Limiter.
type AuthLimiter interface {
	Current() *limiter.Snapshot
	Check(context.Context, *limiter.Call) error
	ReturnSlots(id string, reporter limiter.SlotReporter) algorithms.Micros
}

// AuthObserver receives events about requests that get no verdict from the limiter.
type AuthObserver interface {
	// Refused is called with one of the reasons below.
	Refused(reason string)
}

// These are the reasons for which a request gets no verdict from the limiter.
const (
	NoRoute       = "auth_no_route"       // no route matched
	NoDescriptor  = "auth_no_descriptor"  // a route matched, but each of its descriptors had a missing value
	NotConfigured = "auth_not_configured" // the configuration has no auth section
	Repeated      = "auth_repeated"       // a header, cookie or parameter that affects which limits apply was repeated, or the target contains "#" or an ambiguous path
	Panicked      = "panic"
)

// Auth decides requests that proxies describe over HTTP. It answers with 200 and an empty body, with a denial, or
// with 503 if there is no decision. It never reads a body, because NGINX may announce a body that it does not send.
type Auth struct {
	// Limiter decides, with the auth section of its Snapshot.
	Limiter  AuthLimiter
	Observer AuthObserver
	Headers  HeaderSets
	// ReturnsSlots means that the proxy returns slots: its access log has the id that the header X-RateLimit-Slot of the
	// answer contains. Otherwise concurrency limits deny.
	ReturnsSlots bool
	// Gone reports whether the proxy has closed the connection of r. It is called only if ReturnsSlots is set.
	Gone func(r *http.Request) bool
	// Hold, if not nil, is called before the answer to r is held for the duration d.
	Hold func(r *http.Request, d time.Duration)
	// Log receives panics, at most one message a second.
	Log *zap.Logger

	panics *zap.Logger
	delays delay.Room
}

// before returns a handler that answers requests at or below authPath, and passes others to the handler next.
func (d *Auth) before(next http.Handler) http.Handler {
	d.panics = logthrottle.Log(d.Log, time.Second)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if own, query, ok := below(r); ok {
			d.serve(w, r, own, query)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// below reports whether a request is at or below authPath. own is the path below it.
func below(r *http.Request) (own, query string, ok bool) {
	path, query := canonical.Split(r.RequestURI)
	own, ok = strings.CutPrefix(path, authPath)
	return own, query, ok && (own == "" || own[0] == '/')
}

type authExchange struct {
	call  limiter.Call
	lines lines
	body  []byte
	slots []byte // the id of the slots that the request has taken; empty if it has none
}

var authExchanges = sync.Pool{New: func() any { return &authExchange{} }}

// authAnswer is the answer to an auth request, without the headers for v.
type authAnswer struct {
	code   int
	reason string
	v      *limiter.Verdict // nil if no limit was evaluated
}

func (d *Auth) serve(w http.ResponseWriter, r *http.Request, own, query string) {
	// The kind of proxy is in the path, because a client can forge a query. Behind ext_authz the client
	// also chooses the rest of the path, so the header that NGINX sends must be present too.
	nginx := own == "/nginx" || strings.HasPrefix(own, "/nginx/") && r.Header["X-Original-Uri"] != nil
	if r.ContentLength != 0 {
		// The next bytes on this connection can be the announced body, or a new request. Without this deadline,
		// net/http would try to read the body for a while.
		w.Header().Set("Connection", "close")
		_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) // if this fails, net/http only waits longer
	}
	x := authExchanges.Get().(*authExchange)
	a := d.decide(r, x, &clientRequest{r: r, nginx: nginx}, own, query)
	if len(x.slots) > 0 && (a.code == 0 || d.Gone(r)) { // the answer has not been written, so the proxy cannot use it
		d.Limiter.ReturnSlots(string(x.slots), limiter.ReporterReset)
		x.slots, a = x.slots[:0], authAnswer{code: http.StatusServiceUnavailable}
	}
	if a.code != 0 {
		d.reply(w, r, x, a, nginx)
	}
	x.call.Reset()
	x.slots = x.slots[:0]
	x.lines = lines{text: x.lines.text[:0]}
	authExchanges.Put(x)
}

// decide returns the answer. Its code is 0 if the client has disconnected.
func (d *Auth) decide(r *http.Request, x *authExchange, of *clientRequest, own, query string) (a authAnswer) {
	defer func() {
		if p := recover(); p != nil {
			d.panics.Error("panic while answering; the request is denied", zap.Any("panic", p), zap.Stack("stack"))
			d.Observer.Refused(Panicked)
			a = authAnswer{code: http.StatusTooManyRequests, reason: reasonPanic}
			*x = authExchange{}
		}
	}()
	s := d.Limiter.Current()
	if s == nil {
		return authAnswer{code: http.StatusServiceUnavailable}
	}
	if of.auth = s.Auth; of.auth == nil {
		return d.unrouted(of, NotConfigured)
	}
	of.read(own, query)
	route := routing.Find(of.auth, &of.Request)
	if routing.Repeated(of.auth, route, &of.Request) != "" {
		d.Observer.Refused(Repeated)
		return authAnswer{code: http.StatusTooManyRequests, reason: reasonRepeated}
	}
	if route == nil {
		return d.unrouted(of, NoRoute)
	}
	c := &x.call
	if routing.Fill(c, of.auth, route, &of.Request); len(c.Descriptors) == 0 && !s.Requires(c.Request.Domain) {
		return d.unrouted(of, NoDescriptor)
	}
	c.Request.Returns, c.MadeFor = d.ReturnsSlots, s
	c.Request.MaxDelay, c.Arrived, c.Listener = d.delays.Longest(r.Context()), time.Now(), limiter.OverAuth
	switch err := d.Limiter.Check(r.Context(), c); {
	case errors.Is(err, limiter.ErrReloaded): // the other configuration may not limit these descriptors
		c.Reset()
		return d.decide(r, x, of, own, query)
	case err != nil:
		return authAnswer{code: http.StatusServiceUnavailable}
	case c.Err != nil:
		return authAnswer{code: http.StatusServiceUnavailable, reason: reasonFailure}
	}
	if c.HasSlots() {
		x.slots = c.AppendID(x.slots)
	}
	if delay := c.Verdict.Delay; delay > 0 {
		if d.Hold != nil {
			d.Hold(r, time.Duration(delay)*time.Microsecond)
		}
		if d.delays.Wait(r.Context(), delay) != nil {
			return authAnswer{}
		}
	}
	return answerTo(&c.Verdict)
}

func (d *Auth) unrouted(of *clientRequest, reason string) authAnswer {
	d.Observer.Refused(reason)
	if of.auth != nil && of.auth.Allow {
		return authAnswer{code: http.StatusOK, reason: reasonNoRoute}
	}
	return authAnswer{code: http.StatusTooManyRequests, reason: reasonNoRoute}
}

func answerTo(v *limiter.Verdict) authAnswer {
	a := authAnswer{code: http.StatusOK, v: v}
	if v.Denied {
		a.code = http.StatusTooManyRequests
	}
	switch {
	case v.Denied && slices.ContainsFunc(v.Results, func(r limiter.Result) bool { return r.NoReturn }):
		a.reason = reasonNoReturn
	case v.Denied && v.Missing != nil:
		a.reason = reasonMissing
	case v.Denied && v.Never:
		a.reason = reasonNever
	case limitReached(v):
		a.reason = reasonLimit
	case v.Failed:
		a.reason = reasonFailure
	case v.Denied:
		a.reason = reasonLimit
	}
	return a
}

// limitReached reports whether the reason for the denial is a limit, not a failure of the store.
func limitReached(v *limiter.Verdict) bool {
	for i := range v.Results {
		if r := &v.Results[i]; r.Outcome == limiter.Denied && v.Denies(r) {
			return true
		}
	}
	return false
}

// reply sends the answer a. NGINX accepts only 401 and 403 as denials, and discards their bodies.
func (d *Auth) reply(w http.ResponseWriter, r *http.Request, x *authExchange, a authAnswer, nginx bool) {
	l := &x.lines
	refused := a.code == http.StatusTooManyRequests
	if a.v != nil {
		l.verdict(d.Headers, a.v)
	}
	if refused && a.v != nil && !a.v.Never && !a.v.Busy {
		l.number(retryAfter, max(1, wholeSeconds(a.v.RetryAfter)))
	}
	if a.reason != "" {
		l.word("X-RateLimit-Reason", a.reason)
	}
	if len(x.slots) > 0 {
		l.word("X-RateLimit-Slot", string(x.slots))
	}
	if refused && nginx && a.v != nil { // NGINX does not send the headers of this answer to the client
		l.deniedBy(a.v)
	}
	l.write(w.Header())
	if !refused || nginx {
		if refused {
			a.code = http.StatusForbidden
		}
		w.Header()["Content-Length"] = noBody
		w.WriteHeader(a.code)
		return
	}
	x.body, w.Header()["Content-Type"] = a.appendBody(x.body[:0], l.noRetryAfter)
	w.Header().Set("Content-Length", strconv.Itoa(len(x.body)))
	w.WriteHeader(a.code)
	if r.Method != http.MethodHead {
		_, _ = w.Write(x.body) // an error only means that the proxy has disconnected
	}
}

// These values of Content-Length and Content-Type are allocated once.
var (
	noBody       = []string{"0"}
	contentTypes = func() (all [limiter.TextBody + 1][]string) {
		for f := range all {
			all[f] = []string{clientreply.ContentType(limiter.Body(f))}
		}
		return all
	}()
)

// appendBody appends the body of a denial, by default problem details (RFC 9457). It contains no bytes from the
// client. noRetryAfter omits the retry time.
func (a *authAnswer) appendBody(b []byte, noRetryAfter bool) (body []byte, contentType []string) {
	switch format := limiter.ProblemBody; {
	case a.v != nil:
		if own := clientreply.Format(a.v); own != limiter.NoBody {
			format = own
		}
		return clientreply.AppendBody(b, format, a.v, noRetryAfter), contentTypes[format]
	case a.reason == reasonPanic:
		b = append(b, `{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Too Many Requests","status":429}`+"\n"...)
	default:
		b = append(b, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429}`+"\n"...)
	}
	return b, contentTypes[limiter.ProblemBody]
}
