package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestPaths(t *testing.T) {
	ready := true
	h := New(Config{
		Ready: func() bool { return ready },
		AnswerJSON: func(_ context.Context, body []byte, _ bool) (int, []byte) {
			switch string(body) {
			case "ok":
				return http.StatusOK, []byte("{}")
			case "over":
				return http.StatusTooManyRequests, []byte("{}")
			default:
				return http.StatusBadRequest, []byte("no\n")
			}
		},
	})
	for _, c := range []struct {
		method, path, body string
		ready              bool
		code               int
		kind, want         string
	}{
		{"POST", "/json", "ok", true, 200, "application/json", "{}"},
		{"POST", "/json", "over", true, 429, "application/json", "{}"},
		{"POST", "/json", "?", true, 400, "text/plain; charset=utf-8", "no\n"},
		{"POST", "/json", strings.Repeat("x", maxBody), true, 400, "text/plain; charset=utf-8", "no\n"},
		{"POST", "/json", strings.Repeat("x", maxBody+1), true, 413, "text/plain; charset=utf-8", "http: request body too large\n"},
		{"GET", "/json", "", true, 405, "text/plain; charset=utf-8", "Method Not Allowed\n"},
		{"GET", "/healthcheck", "", true, 200, "text/plain; charset=utf-8", "OK"},
		{"GET", "/healthcheck", "", false, 500, "text/plain; charset=utf-8", ""},
		{"HEAD", "/healthcheck", "", true, 200, "text/plain; charset=utf-8", ""},
		{"GET", "/readyz", "", true, 200, "text/plain; charset=utf-8", "OK"},
		{"GET", "/readyz", "", false, 503, "text/plain; charset=utf-8", ""},
		{"GET", "/livez", "", false, 200, "text/plain; charset=utf-8", "OK"},
		{"GET", "/elsewhere", "", true, 404, "text/plain; charset=utf-8", "404 page not found\n"},
	} {
		ready = c.ready
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
		body := w.Body.String()
		if c.method == "HEAD" {
			body = ""
		}
		if w.Code != c.code || body != c.want || w.Header().Get("Content-Type") != c.kind {
			t.Errorf("%s %s: got %d %q %q; want %d %q %q", c.method, c.path, w.Code, w.Header().Get("Content-Type"), body, c.code, c.kind, c.want)
		}
		if c.kind == "application/json" && w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: got %v; browsers must not interpret JSON as another type", c.method, c.path, w.Header())
		}
	}
}
