package admin

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/httpauth"
)

func guarded(t *testing.T, edit ...func(*Config)) http.Handler {
	t.Helper()
	c := fixture(t)
	c.Token, c.ReadToken = httpauth.FixedToken("secret"), httpauth.FixedToken("reader")
	for _, e := range edit {
		e(&c)
	}
	return New(c)
}

const host = "sidecar.test:6070"

type browser struct {
	h       http.Handler
	cookies map[string]string
	remote  string
}

func newBrowser(h http.Handler) *browser {
	return &browser{h, map[string]string{}, "192.0.2.1:1234"}
}

func (b *browser) send(method, path string, form url.Values, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(form.Encode()))
	r.Host, r.RemoteAddr = host, b.remote
	r.Header.Set("Accept", "text/html")
	if method == "POST" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", "http://"+host)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	for i := 0; i+1 < len(header); i += 2 {
		switch {
		case header[i] == "Host":
			r.Host = header[i+1]
		case header[i+1] == "":
			r.Header.Del(header[i])
		default:
			r.Header.Set(header[i], header[i+1])
		}
	}
	for name, value := range b.cookies {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	w := httptest.NewRecorder()
	b.h.ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() {
		if b.cookies[c.Name] = c.Value; c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		}
	}
	return w
}

func (b *browser) logIn(token string) *httptest.ResponseRecorder {
	return b.send("POST", "/login", url.Values{"token": {token}, "next": {"/?q=x"}})
}

func (b *browser) csrf() string {
	_, rest, _ := strings.Cut(b.send("GET", "/", nil).Body.String(), `name="csrf" value="`)
	token, _, _ := strings.Cut(rest, `"`)
	return token
}

func TestAConfiguredTokenIsRequired(t *testing.T) {
	for token, code := range map[string]int{
		"": 401, "secret": 401, "Bearer": 401, "Bearer ": 401, "Bearer Secret": 401, "Basic secret": 401, "Bearer secretsecret": 401,
		"Bearer secret": 200, "bearer secret": 200, "Bearer reader": 200, "Bearer  reader ": 200,
	} {
		h := guarded(t) // a new one, because wrong tokens are counted
		for _, path := range []string{"/", "/api/top", "/metrics", "/rlconfig", "/debug/pprof/"} {
			w := get(h, path, token)
			if w.Code != code {
				t.Errorf("%q gets %d from %s; want status %v", token, w.Code, path, code)
			}
			if got := w.Header().Get("WWW-Authenticate"); (got == `Bearer realm="rlsidecar"`) != (code == 401) {
				t.Errorf("%q at %s: got %q; want the scheme of the token only with 401", token, path, got)
			}
			if code == 401 && strings.Contains(w.Body.String(), "1,234") {
				t.Errorf("%q sees a limit at %s; want no %q", token, path, "1,234")
			}
		}
	}
	if w := get(guarded(t), "/elsewhere", ""); w.Code != 401 {
		t.Errorf("without a token, the answer %d shows content; want status 401", w.Code)
	}
}

func TestTheReadOnlyTokenAllowsOnlyReading(t *testing.T) {
	h := guarded(t)
	for token, want := range map[string]map[string]int{
		"secret": {"GET": 200, "HEAD": 200, "POST": 200, "DELETE": 200},
		"reader": {"GET": 200, "HEAD": 200, "POST": 403, "DELETE": 403, "get": 403},
	} {
		for method, code := range want {
			r := httptest.NewRequest(method, "/api/reset", nil)
			r.Header.Set("Authorization", "Bearer "+token)
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != code {
				t.Errorf("%s with %s: %d, want %d", method, token, w.Code, code)
			}
		}
	}
	b := newBrowser(h)
	b.logIn("reader")
	if w := b.send("GET", "/", nil); w.Code != 200 {
		t.Errorf("logged in as a reader: %d; want status 200", w.Code)
	}
	if w := b.send("POST", "/logout", url.Values{"csrf": {b.csrf()}}); w.Code != http.StatusSeeOther {
		t.Errorf("logged in as a reader, and out: %d; want status 303", w.Code)
	}
}

// A browser that reached the page over HTTPS must not send its cookie without TLS.
func TestSessionsOfATLSProxyStayOnTLS(t *testing.T) {
	for origin, secure := range map[string]bool{"http://" + host: false, "https://" + host: true} {
		w := newBrowser(guarded(t)).send("POST", "/login", url.Values{"token": {"secret"}}, "Origin", origin)
		if cookies := w.Result().Cookies(); w.Code != 303 || len(cookies) != 1 || cookies[0].Secure != secure {
			t.Errorf("from %s: %d, %v; want status 303, and 1 cookie with Secure %v", origin, w.Code, cookies, secure)
		}
	}
}

func TestLoggingInAndOut(t *testing.T) {
	b := newBrowser(guarded(t))
	if w := b.send("GET", "/?q=x", nil); w.Code != 401 || !strings.Contains(w.Body.String(), `name="next" value="/?q=x"`) || !strings.Contains(w.Body.String(), `type="password"`) {
		t.Errorf("got %d %s; want status 401, a text that contains %q and a text that contains %q", w.Code, w.Body, `name="next" value="/?q=x"`, `type="password"`)
	}
	for _, wrong := range []string{"", "Secret", "secret2", "secre"} {
		if w := b.logIn(wrong); w.Code != 403 || len(b.cookies) > 0 || !strings.Contains(w.Body.String(), "This is not the token.") {
			t.Errorf("%q: got %d, %v; want status 403, no cookies and a text that contains %q", wrong, w.Code, b.cookies, "This is not the token.")
		}
	}
	w := b.logIn(" secret\n")
	if w.Code != 303 || w.Header().Get("Location") != "/?q=x" {
		t.Fatalf("%d to %s; want 303 to %q", w.Code, w.Header().Get("Location"), "/?q=x")
	}
	cookie := w.Header().Get("Set-Cookie")
	for _, want := range []string{"rlsidecar_session_6070=", "HttpOnly", "SameSite=Strict", "Path=/"} {
		if !strings.Contains(cookie, want) {
			t.Errorf("no %s in %s", want, cookie)
		}
	}
	if id := b.cookies["rlsidecar_session_6070"]; len(id) < 40 || strings.Contains(id, "secret") {
		t.Errorf("the id of the session is %q; want at least 40 bytes and no %q", id, "secret")
	}
	for _, path := range []string{"/", "/metrics", "/rlconfig", "/debug/pprof/"} {
		if w := b.send("GET", path, nil); w.Code != 200 {
			t.Errorf("%s: got %d; want status 200", path, w.Code)
		}
	}
	if w := b.send("GET", "/api/top", nil); w.Code != 401 {
		t.Errorf("a cookie is accepted by /api/: %d; want status 401", w.Code)
	}
	copied := *b
	copied.cookies = map[string]string{"rlsidecar_session_6070": b.cookies["rlsidecar_session_6070"]}
	if w := b.send("POST", "/logout", url.Values{"csrf": {b.csrf()}}); w.Code != 303 || len(b.cookies) > 0 {
		t.Errorf("got %d, %v; want status 303 and no cookies", w.Code, b.cookies)
	}
	if w := copied.send("GET", "/", nil); w.Code != 401 {
		t.Errorf("the session goes on after it was ended: %d; want status 401", w.Code)
	}
}

// A page of another origin can make a browser send any form. The browser adds the cookie if the host is the
// same, because cookies ignore ports.
func TestFormsOfOtherPagesAreRefused(t *testing.T) {
	b := newBrowser(guarded(t))
	b.logIn("secret")
	csrf := b.csrf()
	if len(csrf) < 20 {
		t.Fatalf("the token of forms is %q; want at least 20 characters", csrf)
	}
	other := newBrowser(b.h)
	other.logIn("secret")
	form := url.Values{"csrf": {csrf}}
	for name, header := range map[string][]string{
		"no origin":       {"Origin", ""},
		"null":            {"Origin", "null"},
		"another port":    {"Origin", "http://sidecar.test:3000"},
		"no port":         {"Origin", "http://sidecar.test"},
		"another host":    {"Origin", "http://evil.test:6070"},
		"a longer host":   {"Origin", "http://sidecar.test:60700"},
		"another scheme":  {"Origin", "ftp://sidecar.test:6070"},
		"same site":       {"Sec-Fetch-Site", "same-site"},
		"cross site":      {"Sec-Fetch-Site", "cross-site"},
		"by another name": {"Host", "evil.test:6070"},
	} {
		if w := b.send("POST", "/logout", form, header...); w.Code != 403 && w.Code != 401 {
			t.Errorf("%s: got %d; want status 403 or 401", name, w.Code)
		}
		if w := newBrowser(b.h).send("POST", "/login", url.Values{"token": {"secret"}}, header...); w.Code != 403 {
			t.Errorf("log in, %s: %d; want status 403", name, w.Code)
		}
	}
	for name, value := range map[string]string{"none": "", "of another session": other.csrf(), "longer": csrf + "x", "shorter": csrf[1:]} {
		if w := b.send("POST", "/logout", url.Values{"csrf": {value}}); w.Code != 403 {
			t.Errorf("token %s: %d; want status 403", name, w.Code)
		}
	}
	if w := b.send("POST", "/logout?csrf="+csrf, nil); w.Code != 403 {
		t.Errorf("token in the query: %d; want status 403", w.Code)
	}
	if w := b.send("GET", "/logout?csrf="+csrf, nil); w.Code == 303 {
		t.Error("a link logs out")
	}
	if w := b.send("POST", "/logout", url.Values{"csrf": {csrf}, "x": {strings.Repeat("x", maxFormBytes)}}); w.Code != 400 {
		t.Errorf("a large form: %d; want status 400", w.Code)
	}
	if w := b.send("GET", "/", nil); w.Code != 200 {
		t.Errorf("one of these forms has ended the session: got %d; want status 200", w.Code)
	}
}

func TestWithoutATokenOnlyTheUnixSocketAllowsChanges(t *testing.T) {
	p := newPages(fixture(t))
	h := p.handler()
	for _, c := range []struct {
		network string
		host    string
		code    int
	}{{"tcp", "localhost:6070", 403}, {"unix", "localhost:9000", 303}, {"unix", "evil.test:9000", 421}} {
		ctx := context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(&net.UnixAddr{Net: c.network}))
		send := func(method string, form url.Values) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(ctx, method, "/logout", strings.NewReader(form.Encode()))
			if method == "GET" {
				r.URL.Path = "/"
			}
			r.Host = c.host
			r.Header.Set("Origin", "http://"+c.host)
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		body := send("GET", nil).Body.String()
		if strings.Contains(body, "changes nothing") != (c.network == "tcp") {
			t.Errorf("%s: got %s; want a note that the page changes nothing: %v", c.network, body, c.network == "tcp")
		}
		if w := send("POST", url.Values{"csrf": {p.access.socketCSRF}}); w.Code != c.code {
			t.Errorf("%s, %s: %d, want %d", c.network, c.host, w.Code, c.code)
		}
	}
}

// Wrong tokens count alike in a form and in a header.
func TestAttemptsAreBounded(t *testing.T) {
	now := began
	h := guarded(t, func(c *Config) { c.Now = func() time.Time { return now } })
	b := newBrowser(h)
	form := func(token string) *httptest.ResponseRecorder { return b.logIn(token) }
	header := func(token string) *httptest.ResponseRecorder {
		return b.send("GET", "/metrics", nil, "Authorization", "Bearer "+token)
	}
	api := func(token string) *httptest.ResponseRecorder {
		return b.send("POST", "/api/reset", nil, "Authorization", "bearer "+token)
	}
	tries := func(how func(string) *httptest.ResponseRecorder) (n int) {
		for ; n < 500; n++ {
			if w := how("guess"); w.Code == http.StatusTooManyRequests {
				if w.Header().Get("Retry-After") != "1" {
					t.Errorf("Retry-After is %q; want 1", w.Header().Get("Retry-After"))
				}
				return n
			}
		}
		return n
	}
	for i, how := range []func(string) *httptest.ResponseRecorder{form, header, api} {
		b.remote = fmt.Sprintf("192.0.2.%d:1", 10+i)
		if n := tries(how); n != attemptsAtOnce {
			t.Errorf("%d: %d attempts, want %d", i, n, attemptsAtOnce)
		}
		for _, other := range []func(string) *httptest.ResponseRecorder{form, header, api} {
			if w := other("secret"); w.Code != http.StatusTooManyRequests {
				t.Errorf("%d: the token is accepted after too many attempts: %d; want 429", i, w.Code)
			}
		}
	}
	other := newBrowser(h)
	other.remote = "192.0.2.2:1"
	if w := other.logIn("secret"); w.Code != 303 {
		t.Errorf("another client is kept out: %d; want status 303", w.Code)
	}
	now = now.Add(3 * time.Second)
	if n := tries(form); n != 3 {
		t.Errorf("%d attempts after 3 s, want 3", n)
	}
	// A host has many IPv6 addresses, which count as one client.
	b.remote = "[2001:db8::1]:1"
	tries(form)
	b.remote = "[2001:db8::ffff:ffff]:1"
	if n := tries(header); n != 0 {
		t.Errorf("%d attempts by another address of the same host; want 0", n)
	}
}

// Many addresses together may not try many tokens, nor keep out a client that has sent the right token before.
func TestAttemptsOfManyAddressesAreBounded(t *testing.T) {
	now := began
	h := guarded(t, func(c *Config) { c.Now = func() time.Time { return now } })
	operator := newBrowser(h)
	if w := operator.logIn("reader"); w.Code != 303 {
		t.Fatalf("got %d; want status 303", w.Code)
	}
	attacker, tried := newBrowser(h), 0
	guess := func(i int) {
		attacker.remote = fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255)
		if w := attacker.send("GET", "/metrics", nil, "Authorization", "Bearer guess"); w.Code != http.StatusTooManyRequests {
			tried++
		}
	}
	for i := range 4 * maxClients {
		guess(i)
	}
	if tried != allAttemptsAtOnce {
		t.Errorf("%d attempts at once; want %d", tried, allAttemptsAtOnce)
	}
	tried = 0
	for i := range 2000 { // 200 s
		now = now.Add(100 * time.Millisecond)
		guess(5000 + 2*i)
		guess(5001 + 2*i)
		if w := operator.send("GET", "/metrics", nil, "Authorization", "Bearer secret"); w.Code != 200 {
			t.Fatalf("a client that is known is kept out: %d; want status 200", w.Code)
		}
	}
	if want := 200 * allAttemptsPerSecond; tried != want {
		t.Errorf("%d attempts in 200 s; want %d", tried, want)
	}
	newcomer := newBrowser(h)
	newcomer.remote = "192.0.2.9:1"
	now = now.Add(100 * time.Millisecond)
	if w := newcomer.logIn("secret"); w.Code != 303 {
		t.Errorf("a new client, 0.1 s after the last attempt: %d; want status 303", w.Code)
	}
}

func TestSessionsEnd(t *testing.T) {
	now, secret := began, "secret"
	h := guarded(t, func(c *Config) {
		c.Now = func() time.Time { return now }
		c.Token = func() string { return secret }
	})
	b := newBrowser(h)
	in := func() bool { return b.send("GET", "/", nil).Code == 200 }
	logIn := func() {
		t.Helper()
		if b.logIn(secret); !in() {
			t.Fatal("not logged in")
		}
	}
	logIn()
	for range 12 { // the session is used every 59 minutes
		if now = now.Add(59 * time.Minute); !in() {
			t.Fatalf("over after %v", now.Sub(began))
		}
	}
	if now = began.Add(sessionLife); in() {
		t.Error("the session outlives 12 hours")
	}
	logIn()
	if now = now.Add(sessionIdle); in() {
		t.Error("the session outlives an hour without use")
	}
	logIn()
	for range 60 { // the page refreshes itself, which does not count as use by a person
		now = now.Add(time.Minute)
		b.send("GET", "/", nil, "X-Refresh", "1")
	}
	if in() {
		t.Error("an open page that nobody uses keeps the session")
	}
	logIn()
	secret = "another"
	if in() {
		t.Error("the session outlives the token")
	}
	logIn()
	for range maxSessions {
		now = now.Add(time.Second)
		another := newBrowser(h)
		another.remote = fmt.Sprintf("10.0.0.%d:1", now.Unix()%250)
		another.logIn(secret)
	}
	if in() {
		t.Error("there are more sessions than allowed")
	}
}

func TestLoggingInRedirectsOnlyToThisListener(t *testing.T) {
	for next, want := range map[string]string{
		"/": "/", "/?q=x#limits": "/?q=x#limits", "/key?value=%2F%2Fevil": "/key?value=%2F%2Fevil",
		"": "/", "//evil.test": "/", "///evil.test": "/", "https://evil.test/": "/", "/\\evil.test": "/", "evil": "/", "javascript:alert(1)": "/", "/\r\nx: y": "/", "/%zz": "/",
	} {
		if got := local(next); got != want {
			t.Errorf("%q leads to %q, want %q", next, got, want)
		}
	}
}

func TestTheNameOfTheCookieContainsThePort(t *testing.T) {
	for host, want := range map[string]string{
		"sidecar.test:6070": "rlsidecar_session_6070", "sidecar.test": "rlsidecar_session", "[::1]:80": "rlsidecar_session_80",
		"::1": "rlsidecar_session", "sidecar.test:x;y": "rlsidecar_session", "": "rlsidecar_session",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = host
		if got := cookieName(r); got != want {
			t.Errorf("%q: got %q, want %q", host, got, want)
		}
	}
}

// A form of tiny fields would need megabytes, without a token.
func TestFormsWithManyFieldsAreRefused(t *testing.T) {
	h := guarded(t)
	for n, want := range map[int]int{100: http.StatusForbidden, 300: http.StatusBadRequest, 20_000: http.StatusBadRequest} {
		r := httptest.NewRequest("POST", "/login", strings.NewReader("token=x"+strings.Repeat("&a", n)))
		r.Host = host
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", "http://"+host)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%d fields: %d; want %d", n, w.Code, want)
		}
	}
}
