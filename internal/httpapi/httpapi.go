// Package httpapi is the door for whoever speaks plain HTTP: proxies that ask whether to let a
// request pass (/v1/auth), applications that ask about limits by their names (/v1/limit), the
// reference server's JSON form of ShouldRateLimit, and the health of the program.
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// maxBody bounds a request's body, as maxAsk does at the API. What is decoded from it is many times larger.
const maxBody = 64 << 10

// Config is what the door needs.
type Config struct {
	// AnswerJSON answers a RateLimitRequest in JSON: with a status code and what to say.
	AnswerJSON func(ctx context.Context, body []byte) (code int, response []byte)
	// Ready tells whether requests should be sent here.
	Ready func() bool
	// Auth is for proxies; nil: there is none.
	Auth *Auth
	// API is for applications; nil: there is none.
	API *API
}

// New makes the handler of all paths.
func New(c Config) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /json", c.json)
	mux.HandleFunc("GET /healthcheck", func(w http.ResponseWriter, _ *http.Request) {
		health(w, c.Ready(), http.StatusInternalServerError) // the reference server's code
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		health(w, c.Ready(), http.StatusServiceUnavailable)
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { health(w, true, 0) })
	mux.HandleFunc("GET /openapi.json", describeAll)
	if c.API != nil {
		c.API.routes(mux)
	}
	if c.Auth == nil {
		return mux
	}
	return c.Auth.before(mux) // because a mux cleans paths, and redirects
}

// health answers OK, or code.
func health(w http.ResponseWriter, good bool, code int) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !good {
		w.WriteHeader(code)
		return
	}
	fmt.Fprint(w, "OK")
}

func (c *Config) json(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		code := http.StatusBadRequest
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			code = http.StatusRequestEntityTooLarge
		}
		http.Error(w, err.Error(), code)
		return
	}
	code, response := c.AnswerJSON(r.Context(), body)
	kind := "text/plain; charset=utf-8"
	if code == http.StatusOK || code == http.StatusTooManyRequests {
		kind = "application/json"
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(response) // an error is the reader's
}
