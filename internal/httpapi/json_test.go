package httpapi

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// jsonHandler counts the requests that it decides.
func jsonHandler(local bool, decided *int) http.Handler {
	return New(Config{Token: httpauth.FixedToken("s3cret"), Local: local, AnswerJSON: func(_ context.Context, _ []byte, trusted bool) (int, []byte) {
		if *decided++; trusted {
			return 200, []byte("trusted")
		}
		return 200, []byte("{}")
	}})
}

// Each line is a request, with its status if only this machine can reach the port (local) and if others can too
// (remote). Programs must get an answer in at least one of the cases. Web pages of other sites must not.
func TestPagesOfOtherSitesCannotUseJSON(t *testing.T) {
	const json, form = "Content-Type: application/json", "Content-Type: application/x-www-form-urlencoded"
	for _, c := range []struct {
		what, host, headers string
		local, remote       int
	}{
		{"curl -H application/json", "localhost:8080", json, 200, 200},
		{"curl -d", "127.0.0.1:8080", form, 200, 200},
		{"no content type", "127.0.0.1:8080", "", 200, 200},
		{"IPv6", "[::1]:8080", json, 200, 200},
		{"with parameters", "127.0.0.1:8080", json + "; charset=utf-8", 200, 200},
		{"another type", "127.0.0.1:8080", "Content-Type: application/grpc+json", 200, 200},
		{"a type that cannot be read", "127.0.0.1:8080", "Content-Type: ;;", 200, 200},
		{"HTTP/1.0 without Host", "", json, 200, 200},
		{"a service of Kubernetes", "rlsidecar.edge.svc.cluster.local:8080", json, 403, 200},
		{"a program with an unrelated Authorization", "rlsidecar:8080", json + "|Authorization: Basic eDp5", 403, 200},
		{"the token, by any name", "rlsidecar:8080", json + "|Authorization: Bearer s3cret", 200, 200},
		{"a wrong token", "127.0.0.1:8080", json + "|Authorization: Bearer other", 200, 200},

		{"a name that leads here, GET-like headers", "evil.example:8080", "Sec-Fetch-Site: same-origin", 403, 403},
		{"a name that leads here, over plain HTTP", "evil.example:8080", json + "|Origin: http://evil.example:8080", 403, 403},
		{"a name that starts alike", "localhost.evil.example", json + "|Origin: http://localhost.evil.example", 403, 403},
		{"fetch from another site", "127.0.0.1:8080", form + "|Origin: https://evil.example|Sec-Fetch-Site: cross-site", 403, 403},
		{"a browser without Sec-Fetch", "127.0.0.1:8080", form + "|Origin: https://evil.example", 403, 403},
		{"a sandboxed page", "127.0.0.1:8080", form + "|Origin: null", 403, 403},
		{"another port of this machine", "localhost:8080", form + "|Origin: http://localhost:3000|Sec-Fetch-Site: same-site", 403, 403},
		{"a form of text", "127.0.0.1:8080", "Content-Type: text/plain", 415, 415},
		{"a form of text with parameters", "127.0.0.1:8080", "Content-Type: Text/Plain;charset=UTF-8", 415, 415},
		{"a form with files", "127.0.0.1:8080", "Content-Type: multipart/form-data; boundary=x", 415, 415},
	} {
		for local, want := range map[bool]int{true: c.local, false: c.remote} {
			r := httptest.NewRequest("POST", "/json", strings.NewReader("{}"))
			r.Host = c.host
			for line := range strings.SplitSeq(c.headers, "|") {
				if name, value, ok := strings.Cut(line, ": "); ok {
					r.Header.Set(name, value)
				}
			}
			w, decided := httptest.NewRecorder(), 0
			jsonHandler(local, &decided).ServeHTTP(w, r)
			if w.Code != want || (decided == 1) != (want == 200) {
				t.Errorf("%s, local %t: %d %s, and %d decisions; want %d, and a decision only for 200", c.what, local, w.Code, w.Body, decided, want)
			}
			if trusted := w.Body.String() == "trusted"; trusted != strings.Contains(c.headers, "s3cret") {
				t.Errorf("%s: trusted is %t; want true only with the token", c.what, trusted)
			}
		}
	}
	// Browsers cannot connect to a Unix socket, so any Host is accepted there.
	r := httptest.NewRequest("POST", "/json", strings.NewReader("{}"))
	r = r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(&net.UnixAddr{Name: "/s", Net: "unix"})))
	w := httptest.NewRecorder()
	if jsonHandler(true, new(int)).ServeHTTP(w, r); w.Code != 200 {
		t.Errorf("a Unix socket: got %d; want status 200", w.Code)
	}
}

// What /json refuses because of its content type, the other paths refuse too, unless a token proves that a program sent
// it.
func TestFormsOfOtherSitesCannotUseTheAPI(t *testing.T) {
	open := apiOver(t, memory.New(memory.Config{}))
	token := apiOver(t, memory.New(memory.Config{}), func(a *API) { a.Token = httpauth.FixedToken("s3cret") })
	const body = `{"name":"send","key":"bob"}`
	for kind, refused := range map[string]bool{
		"": false, "application/json": false, "application/json; charset=utf-8": false, "application/x-www-form-urlencoded": false,
		"text/plain": true, "Text/Plain;charset=UTF-8": true, "multipart/form-data; boundary=x": true,
	} {
		for _, path := range []string{"/v1/limit", "/v1/check", "/v1/reset", "/json"} {
			want := http.StatusOK
			if refused {
				want = http.StatusUnsupportedMediaType
			}
			h := open
			if path == "/json" {
				h = jsonHandler(true, new(int))
			}
			if w := call(h, "POST", path, body, "Content-Type", kind); w.Code != want {
				t.Errorf("%q to %s: %d %s; want %d", kind, path, w.Code, w.Body, want)
			}
			if path == "/json" {
				continue
			}
			if w := call(token, "POST", path, body, "Content-Type", kind, "Authorization", "Bearer s3cret"); w.Code != http.StatusOK {
				t.Errorf("%q to %s with the token: %d %s; want 200", kind, path, w.Code, w.Body)
			}
		}
	}
	if w := call(open, "GET", "/v1/limits", "", "Content-Type", "text/plain"); w.Code != http.StatusOK {
		t.Errorf("a request that only reads: %d; want 200", w.Code)
	}
}
