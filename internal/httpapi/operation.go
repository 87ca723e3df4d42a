package httpapi

import (
	"errors"
	"io"
	"net"
	"net/http"

	"github.com/rlsidecar/rlsidecar/internal/httpauth"
)

// operation answers the requests with one method to one path. body is that of the request; it is empty for GET. The
// answer is sent as JSON. An error is sent as a problem.
type operation func(r *http.Request, body []byte) (answer any, err error)

// operations are those of one path, by method.
type operations map[string]operation

// headed is an answer with another status than 200, or with headers.
type headed interface {
	// head adds the headers, and returns the status.
	head(h http.Header) int
}

// gate decides which requests reach an operation.
type gate struct {
	// token is the bearer token that each request must have; nil means that none is required.
	token httpauth.Token
	// closed refuses all requests.
	closed bool
	// localHosts refuses requests for which httpauth.HasLocalHost returns false, if no token is required. Otherwise a web
	// site could make its own name resolve to this machine. A browser would then let its pages send requests and read the
	// answers.
	localHosts bool
	// working has an element for each operation in progress, except those of GET. nil means that they are not bounded.
	working chan struct{}
}

// maxWorking is the largest number of bodies of the API that are decoded and answered at the same time. A decoded body
// needs several times the memory of the body. A waiting request holds only its body, and each connection has at most one
// waiting request.
const maxWorking = 128

// register adds the operations of paths to mux. Other paths below prefix do not exist.
func (g *gate) register(mux *http.ServeMux, prefix string, paths map[string]operations) {
	for path, methods := range paths {
		mux.Handle(path, g.handler(methods))
	}
	mux.Handle(prefix, g.handler(nil))
}

func (g *gate) handler(methods operations) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		var body []byte
		refused := g.refuse(r, method, methods)
		if refused == nil && method != http.MethodGet {
			body, refused = readBody(w, r)
		}
		if refused != nil {
			if refused.kind == wrongMethod {
				for allowed := range methods {
					w.Header().Add("Allow", allowed)
				}
			}
			refused.write(w)
			return
		}
		if g.working != nil && method != http.MethodGet {
			select {
			case g.working <- struct{}{}:
				defer func() { <-g.working }()
			case <-r.Context().Done():
				return
			}
		}
		answer, err := methods[method](r, body)
		if err != nil {
			problemOf(err).write(w)
			return
		}
		code := http.StatusOK
		if with, is := answer.(headed); is {
			code = with.head(w.Header())
		}
		send(w, code, "application/json", answer)
	})
}

// refuse checks the authorization and the method of r. It returns nil if an operation may answer r. If methods is nil, the
// path does not exist.
func (g *gate) refuse(r *http.Request, method string, methods operations) *problem {
	var origin http.CrossOriginProtection
	switch {
	case g.closed:
		return unauthorized.because("this port can be reached from other machines and has no token; start the sidecar with --api-token-file, or have it listen on 127.0.0.1")
	case g.localHosts && g.token == nil && !httpauth.HasLocalHost(r):
		return crossOrigin.because("without a token, use an address or localhost as the host name; or start the sidecar with --api-token-file")
	case g.token != nil && !httpauth.HasToken(r, g.token):
		return unauthorized.because("")
	case methods == nil:
		return unknownPath.because("")
	case methods[method] == nil:
		return wrongMethod.because("")
	case origin.Check(r) != nil: // r comes from a web page of another origin; without a token, only this check refuses it
		return crossOrigin.because("")
	case g.token == nil && method != http.MethodGet && formType(r):
		return wrongType.because(sendJSON)
	}
	return nil
}

// readBody reads the whole body.
func readBody(w http.ResponseWriter, r *http.Request) (body []byte, refused *problem) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequestBody))
	if err == nil {
		return body, nil
	}
	_, large := errors.AsType[*http.MaxBytesError](err)
	timeout, slow := errors.AsType[net.Error](err)
	switch {
	case large:
		return nil, tooLarge.because("the body must be at most 64 KiB")
	case slow && timeout.Timeout():
		return nil, tooSlow.because("")
	default:
		return nil, malformed.because("the body ends too early")
	}
}
