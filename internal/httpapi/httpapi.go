// Package httpapi is the door for whoever speaks plain HTTP: proxies that ask whether to let a
// request pass (/v1/auth), applications that ask about limits by their names (/v1/limit), the
// reference server's JSON form of ShouldRateLimit, and the health of the program.
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"github.com/rlsidecar/rlsidecar/internal/httpauth"
)

// maxBody bounds a request's body, as maxAsk does at the API. What is decoded from it is many times larger.
const maxBody = 64 << 10

// Config is what the door needs.
type Config struct {
	// AnswerJSON answers a RateLimitRequest in JSON: with a status code and what to say. nil: there is no
	// /json.
	AnswerJSON AnswerJSON
	// Token is needed at /json by requests that refund; nil: none may.
	Token httpauth.Token
	// Local: only this machine can reach the port.
	Local bool
	// Ready tells whether requests should be sent here.
	Ready func() bool
	// NotReady is why they should not, for a person; nil: it is not said.
	NotReady func() string
	// Auth is for proxies; nil: there is none.
	Auth *Auth
	// API is for applications; nil: there is none.
	API *API
}

// AnswerJSON is grpcapi.Server's. It refuses a request that refunds, unless that is trusted.
type AnswerJSON func(ctx context.Context, body []byte, trusted bool) (code int, response []byte)

// New makes the handler of all paths.
func New(c Config) http.Handler {
	mux := http.NewServeMux()
	if c.AnswerJSON != nil {
		mux.HandleFunc("POST /json", c.json)
	}
	mux.HandleFunc("GET /healthcheck", func(w http.ResponseWriter, _ *http.Request) {
		c.health(w, http.StatusInternalServerError) // the reference server's code
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		c.health(w, http.StatusServiceUnavailable)
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { healthy(w) })
	mux.HandleFunc("GET /openapi.json", describeAll)
	if c.API != nil {
		c.API.routes(mux)
	}
	if c.Auth == nil {
		return mux
	}
	return c.Auth.before(mux) // because a mux cleans paths, and redirects
}

// health answers OK, or code and why not.
func (c *Config) health(w http.ResponseWriter, code int) {
	if c.Ready() {
		healthy(w)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	if c.NotReady != nil {
		_, _ = io.WriteString(w, c.NotReady()) // an error is the reader's
	}
}

func healthy(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprint(w, "OK")
}

// json answers /json, which needs no token unless it refunds.
func (c *Config) json(w http.ResponseWriter, r *http.Request) {
	trusted := httpauth.Brings(r, c.Token)
	if !trusted && !c.fromProgram(w, r) {
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		code := http.StatusBadRequest
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			code = http.StatusRequestEntityTooLarge
		}
		http.Error(w, err.Error(), code)
		return
	}
	code, response := c.AnswerJSON(r.Context(), body, trusted)
	kind := "text/plain; charset=utf-8"
	if code == http.StatusOK || code == http.StatusTooManyRequests {
		kind = "application/json"
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(response) // an error is the reader's
}

// fromProgram reports whether a program sent r, and not a page of a web site, which could consume any
// bucket. It refuses the others:
//   - by a name that is not this machine's, where only this machine can reach the port, or where a
//     browser asks. The site's own name may have been made to lead here. Programs on other machines use
//     whatever name the port has there, such as that of a service in Kubernetes;
//   - by the origin of the page;
//   - by the content types that only forms send, for browsers that do not tell the origin. What curl -d
//     sends is none of them: browsers encode that, so that it is never JSON.
func (c *Config) fromProgram(w http.ResponseWriter, r *http.Request) bool {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	var origin http.CrossOriginProtection
	switch {
	case (c.Local || httpauth.FromBrowser(r)) && !httpauth.NamesThisMachine(r):
		crossOrigin.write(w, "ask by an address or as localhost, or bring the token of --api-token-file", "")
	case origin.Check(r) != nil:
		crossOrigin.write(w, "", "")
	case kind == "text/plain" || kind == "multipart/form-data":
		wrongType.write(w, "send Content-Type: application/json", "")
	default:
		return true
	}
	return false
}
