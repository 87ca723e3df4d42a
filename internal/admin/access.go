package admin

import (
	"crypto/hmac"
	"crypto/rand"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/httpauth"
)

type viewer struct {
	mayRead bool
	// mayWrite permits the forms of the page. Programs send changes to /api/ instead.
	mayWrite bool
	// csrf is the secret that every form must contain.
	csrf string
	// session is nil without the cookie of a session.
	session *session
}

type access struct {
	token, readToken httpauth.Token
	sessions         *sessions
	attempts         *attempts
	// socketCSRF is the viewer.csrf of users of the Unix socket, who need no session.
	socketCSRF string
	now        func() time.Time
}

func newAccess(c *Config) *access {
	return &access{
		token: c.Token, readToken: c.ReadToken, now: c.Now,
		sessions: newSessions(c.Now), attempts: newAttempts(c.Now), socketCSRF: rand.Text(),
	}
}

// viewer returns the permissions of the sender of r. If a token is configured, a request with a token in its
// header may only read, and a session may do what its login permits. Without a token every client of the
// listener may read, but only clients of the Unix socket may change anything, because the containers of a pod
// share their loopback addresses.
func (a *access) viewer(r *http.Request) viewer {
	switch {
	case a.token == nil && httpauth.ThroughUnixSocket(r):
		return viewer{mayRead: true, mayWrite: true, csrf: a.socketCSRF}
	case a.token == nil:
		return viewer{mayRead: true}
	case httpauth.HasToken(r, a.token), httpauth.HasToken(r, a.readToken):
		return viewer{mayRead: true}
	}
	cookie, err := r.Cookie(cookieName(r))
	if err != nil {
		return viewer{}
	}
	s := a.sessions.find(cookie.Value, r.Header.Get("X-Refresh") == "")
	if s == nil {
		return viewer{}
	}
	token := a.readToken
	if s.mayWrite {
		token = a.token
	}
	if token == nil || fingerprint(token()) != s.token { // the token has been replaced since the login
		a.sessions.end(cookie.Value)
		return viewer{}
	}
	return viewer{mayRead: true, mayWrite: s.mayWrite, csrf: s.csrf, session: s}
}

// refusal returns the reason why a form is rejected, or "". A form that changes something needs more
// permissions than the form that ends a session.
func (a *access) refusal(r *http.Request, v viewer, changes bool) string {
	switch {
	case !httpauth.FromSamePage(r):
		return elsewhere
	case changes && !v.mayWrite && a.token == nil:
		return "Changes need the admin token. Start the sidecar with --admin-token-file, or use the Unix socket of --admin-listen."
	case changes && !v.mayWrite:
		return "Changes need the admin token. You are logged in with the read-only token, or not at all."
	case v.csrf == "" || !hmac.Equal([]byte(r.PostFormValue("csrf")), []byte(v.csrf)):
		return "This form is of another session. Open the page again and send the form from there."
	default:
		return ""
	}
}

const elsewhere = "This form was not sent by a page of this sidecar. Open the page again and send the form from there."

// logIn begins a session for a form with a valid token. If id is "", problem says why there is no session, and wait how
// long the client must wait, if it has tried too many tokens.
func (a *access) logIn(r *http.Request) (id, problem string, wait time.Duration) {
	if !httpauth.FromSamePage(r) {
		return "", elsewhere, 0
	}
	given := strings.TrimSpace(r.PostFormValue("token"))
	mayWrite := false
	right, wait := a.attempts.try(r.RemoteAddr, func() bool {
		mayWrite = httpauth.IsToken(given, a.token)
		return mayWrite || httpauth.IsToken(given, a.readToken)
	})
	switch {
	case wait > 0:
		return "", "Too many attempts. Wait " + strconv.Itoa(int(wait.Seconds())+1) + " s and try again.", wait
	case !right:
		return "", "This is not the token.", 0
	default:
		return a.sessions.begin(given, mayWrite), "", 0
	}
}

// cookieName returns a name that contains the port, if the host of r has one. Browsers send a cookie to all ports
// of a host, and one browser may show several sidecars through forwarded ports of one host.
func cookieName(r *http.Request) string {
	const name = "rlsidecar_session"
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil || strings.Trim(port, "0123456789") != "" {
		return name
	}
	return name + "_" + port
}

// sessionCookie returns a cookie that contains id. If id is "", the cookie removes the earlier one.
func sessionCookie(r *http.Request, id string) *http.Cookie {
	c := &http.Cookie{Name: cookieName(r), Value: id, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode}
	c.Secure = r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://")
	if id == "" {
		c.MaxAge = -1
	}
	return c
}

// local returns target if it is a path on this listener, and otherwise the path of the front page.
func local(target string) string {
	u, err := url.Parse(target)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(target, "/") || strings.HasPrefix(target, "//") || strings.ContainsAny(target, "\\\r\n") {
		return "/"
	}
	return target
}

type loginBody struct{ Next, Problem string }

func (p *pages) showLogin(w http.ResponseWriter, r *http.Request, status int, problem string) {
	next := local(r.FormValue("next"))
	if r.URL.Path != "/login" {
		next = local(r.URL.RequestURI())
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="rlsidecar"`)
	}
	p.show(w, r, viewer{}, status, loginPage, frame{Title: "Log in", Body: loginBody{next, problem}})
}

// login shows the login form, and creates a session for a form with a valid token. With a session, or if no token is
// configured, it redirects to the requested page.
func (p *pages) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxFormBytes)
	if err := r.ParseForm(); err != nil {
		p.showLogin(w, r, http.StatusBadRequest, "The form cannot be read.")
		return
	}
	next := local(r.FormValue("next"))
	switch {
	case p.Token == nil:
		http.Redirect(w, r, next, http.StatusSeeOther)
	case r.Method == http.MethodPost:
		id, problem, wait := p.access.logIn(r)
		switch {
		case wait > 0:
			setRetryAfter(w, wait)
			p.showLogin(w, r, http.StatusTooManyRequests, problem)
			return
		case id == "":
			p.showLogin(w, r, http.StatusForbidden, problem)
			return
		}
		http.SetCookie(w, sessionCookie(r, id))
		http.Redirect(w, r, next, http.StatusSeeOther)
	case p.access.viewer(r).mayRead:
		http.Redirect(w, r, next, http.StatusSeeOther)
	default:
		p.showLogin(w, r, http.StatusOK, "")
	}
}

func (p *pages) logout(w http.ResponseWriter, r *http.Request, _ viewer) {
	if cookie, err := r.Cookie(cookieName(r)); err == nil {
		p.access.sessions.end(cookie.Value)
	}
	http.SetCookie(w, sessionCookie(r, ""))
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}
