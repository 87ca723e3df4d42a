package admin

import (
	"net/http"
)

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
