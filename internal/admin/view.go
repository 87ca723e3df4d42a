package admin

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"html/template"
	"io"
	"net/http"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/status"
)

//go:embed assets
var assets embed.FS

// style and script are part of every page. policy, the content security policy, contains their digests. plot, the library
// that draws charts, has a path of its own, because browsers then keep it.
var (
	style  = asset("assets/page.css") + asset("assets/uplot/uPlot.min.css")
	script = asset("assets/page.js")
	plot   = asset("assets/uplot/uPlot.iife.min.js")
	policy = "default-src 'none'; style-src " + digest(style) + "; script-src 'self' " + digest(script) +
		"; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

func asset(name string) string {
	text, err := assets.ReadFile(name)
	if err != nil {
		panic(err) // cannot happen, because the file is embedded
	}
	return string(text)
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// Each page is a template that combines the common layout with its own body. The type NAMEBody has the data of
// assets/NAME.html.
var (
	overviewPage = parse("overview")
	limitsPage   = parse("limits")
	statePage    = parse("state")
	loginPage    = parse("login")
	problemPage  = parse("problem")
	limitPage    = parse("limit")
	keyPage      = parse("key")
	searchPage   = parse("search")
	changePage   = parse("change")
	fleetPage    = parse("fleet")

	adjustmentsPage   = parse("adjustments")
	configurationPage = parse("configuration")
)

func parse(name string) *template.Template {
	return template.Must(template.New("layout.html").Funcs(template.FuncMap{
		"count": count[uint64], "rate": rate, "ago": ago, "at": at, "link": link, "whoOf": whoOf,
	}).ParseFS(assets, "assets/layout.html", "assets/parts.html", "assets/"+name+".html"))
}

// whoOf are the arguments of the template who.
func whoOf(w who, mayWrite bool) any {
	return struct {
		Who      who
		MayWrite bool
	}{w, mayWrite}
}

func link(section, to, name string) choice { return choice{name, to, section == to} }

// frame holds what every page shows around its Body.
type frame struct {
	Title string
	// Section is the navigation link that is marked as chosen, or "".
	Section string
	Version string
	Style   template.CSS
	Script  template.JS
	// Live means that the script refreshes the page.
	Live bool
	// LoggedIn shows a button to log out. NeedsToken means that the page cannot change anything, because the
	// listener has no token.
	LoggedIn, MayWrite, NeedsToken bool
	CSRF                           string
	Query                          string
	// State is nil for clients that may not read.
	State *state
	// Done confirms the client's last action, or is "". Undo is the ID of the adjustment that it made, or "", and
	// UndoVersion the version of this change.
	Done, Undo, UndoVersion, Author string

	Body any
}

type state struct {
	status.Line
	// Others are all problems, if there are several.
	Others []conditions.Condition
}

func (p *pages) show(w http.ResponseWriter, r *http.Request, v viewer, status int, t *template.Template, f frame) {
	f.Version, f.Style, f.Script = p.Version, template.CSS(style), template.JS(script) //nolint:gosec // they are embedded
	f.LoggedIn, f.MayWrite, f.CSRF, f.NeedsToken = v.session != nil, v.mayWrite, v.csrf, p.Token == nil && !v.mayWrite
	if v.mayRead {
		f.State = &state{Line: p.Line()}
		if list := p.Conditions(); len(list) > 1 {
			f.State.Others = list
		}
		q := r.URL.Query()
		f.Done, f.Undo, f.UndoVersion = done[q.Get("done")], q.Get("id"), q.Get("version")
		f.Author = or(p.access.sessions.author(v.session), defaultAuthor)
	}
	var body bytes.Buffer
	if err := t.Execute(&body, f); err != nil {
		http.Error(w, "the page cannot be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	// With no-referrer a browser would send forms without an Origin.
	h.Set("Referrer-Policy", "same-origin")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = body.WriteTo(w) // an error here means that the client has disconnected
}

type problem struct {
	Text string
	Back string // the path to return to; "" means the front page
}

func (p *pages) problem(w http.ResponseWriter, r *http.Request, v viewer, status int, text, back string) {
	p.show(w, r, v, status, problemPage, frame{Title: http.StatusText(status), Body: problem{text, back}})
}

// stateLine shows the line of state alone, for the script, which requests it often.
func (p *pages) stateLine(w http.ResponseWriter, r *http.Request, v viewer) {
	p.show(w, r, v, http.StatusOK, statePage, frame{Title: "State"})
}

// library serves the library that draws charts. It has no secrets, so that it needs no permission.
func library(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "max-age=86400")
	_, _ = io.WriteString(w, plot)
}

func short(d time.Duration) string {
	switch {
	case d < 10*time.Microsecond:
		return d.String()
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < 10*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	default:
		return d.Round(time.Millisecond).String()
	}
}
