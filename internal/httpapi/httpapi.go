// Package httpapi is the HTTP listener. It serves proxies that need a decision on a request (/v1/auth),
// applications that use named limits (/v1/limit and others), the reference server's JSON form of
// ShouldRateLimit (/json), and health checks.
package httpapi

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"github.com/rlsidecar/rlsidecar/internal/httpauth"
)

// maxBody bounds the body of a request to /json, in bytes. Its decoded form is many times larger.
const maxBody = 64 << 10

// Config configures New.
type Config struct {
	// AnswerJSON answers requests to /json; nil means that there is no such path.
	AnswerJSON AnswerJSON
	// Token is required for refunds at /json; nil means that they are refused.
	Token httpauth.Token
	// Local means that only this machine can reach the port.
	Local bool
	// Ready reports whether clients should send requests.
	Ready func() bool
	// NotReady returns the reason why clients should not send requests, in words. nil means that no reason
	// is given.
	NotReady func() string
	// Auth answers proxies; nil means that there is no such path.
	Auth *Auth
	// API answers applications; nil means that there are no such paths.
	API *API
}

// AnswerJSON is implemented by grpcapi.Server. It refuses refunds unless trusted is true.
type AnswerJSON func(ctx context.Context, body []byte, trusted bool) (code int, response []byte)

// New returns the handler for all paths.
func New(c Config) http.Handler {
	mux := http.NewServeMux()
	if c.AnswerJSON != nil {
		mux.HandleFunc("POST /json", c.json)
	}
	mux.HandleFunc("GET /healthcheck", func(w http.ResponseWriter, _ *http.Request) {
		c.health(w, http.StatusInternalServerError) // the status code of the reference server
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		c.health(w, http.StatusServiceUnavailable)
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { healthy(w) })
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) { send(w, http.StatusOK, "application/json", openAPI) })
	if c.API != nil {
		c.API.routes(mux)
	}
	if c.Auth == nil {
		return mux
	}
	return c.Auth.before(mux) // outside of the mux, because a mux cleans paths and redirects
}

func (c *Config) health(w http.ResponseWriter, code int) {
	if c.Ready() {
		healthy(w)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	if c.NotReady != nil {
		_, _ = io.WriteString(w, c.NotReady()) // an error only means that the client has disconnected
	}
}

func healthy(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprint(w, "OK")
}

// json serves /json. Only refunds need a token.
func (c *Config) json(w http.ResponseWriter, r *http.Request) {
	trusted := httpauth.HasToken(r, c.Token)
	if refused := c.refuse(r); refused != nil && !trusted {
		refused.write(w)
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
	_, _ = w.Write(response) // an error only means that the client has disconnected
}

// refuse returns nil if a program sent r. Web pages could otherwise consume units of any bucket. It refuses requests with:
//
//   - a host name other than localhost (see httpauth.HasLocalHost), if only this machine can reach the port or if a
//     browser sent the request, because the name of a web site may resolve to this machine. Programs on other
//     machines use other names, such as that of a Kubernetes service;
//   - the origin of another page;
//   - a content type of a form; see formType.
func (c *Config) refuse(r *http.Request) *problem {
	var origin http.CrossOriginProtection
	switch {
	case (c.Local || httpauth.FromBrowser(r)) && !httpauth.HasLocalHost(r):
		return crossOrigin.because("use an address or localhost as the host name, or send the token of --api-token-file")
	case origin.Check(r) != nil:
		return crossOrigin.because("")
	case formType(r):
		return wrongType.because(sendJSON)
	}
	return nil
}

// formType reports whether r has a content type that only forms of web pages have. A page can send such a request to any
// site, and old browsers do not send the origin with it. The type that curl -d sends is accepted: browsers encode such
// a form, so it is never valid JSON.
func formType(r *http.Request) bool {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return kind == "text/plain" || kind == "multipart/form-data"
}

const sendJSON = "send Content-Type: application/json"

//go:embed openapi.json
var openAPI []byte

//go:embed openapi-operators.json
var operatorsOpenAPI []byte
