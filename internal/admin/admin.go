// Package admin serves the admin listener: the page, metrics, profiles and /api/. The server renders the
// page, which works without a script. Style and script are part of each page, and nothing is loaded from
// other servers.
//
// Keys and names are bytes that clients choose, so they are shown escaped and truncated. access.go checks the
// permissions to read and to make changes.
package admin

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/pprof"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/metrics"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/status"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topkeys"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/unmatched"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Config holds the sources of the pages. The functions are called again for each page.
type Config struct {
	// Token, if not nil, is required: in the header Authorization: Bearer TOKEN, or to log in to the page.
	Token httpauth.Token
	// ReadToken, if not nil, is also accepted for requests that change nothing.
	ReadToken httpauth.Token
	Version   string
	Started   time.Time
	Now       func() time.Time
	// Metrics serves /metrics.
	Metrics http.Handler
	// Limiter reads and resets buckets. Log records resets.
	Limiter *limiter.Limiter
	Log     *zap.Logger
	// Adjust manages adjustments. It is nil if adjustments are not enabled.
	Adjust *adjust.Service
	// Current returns the configuration in use, or nil if there is none.
	Current func() *limiter.Snapshot
	// Reload returns the result of the last load of the configuration.
	Reload func() Reload
	// UseAgain puts the configuration before the last load in use again, until the next load.
	UseAgain func(author string) error
	// Totals returns the numbers of a limit's decisions since the start.
	Totals func(*limiter.Policy) history.Totals
	// Settling returns the numbers of a limit's reservations.
	Settling func(*limiter.Policy) metrics.SettleTally
	// Denied returns the n keys that were denied most, with what they have in common. Shadowed does so for denials that
	// shadow mode prevented. Used returns the keys that consumed most.
	Denied, Shadowed, Used func(n int) topkeys.Top
	// Unmatched returns the n most frequent shapes of requests that matched no limit, and when counting began.
	Unmatched func(n int) (since time.Time, top []unmatched.Shape)
	// History has the counts of the last fifteen minutes. Times has the durations of decisions.
	History *history.Recorder
	Times   *history.Times
	// Conditions returns the current problems, the worst first.
	Conditions func() []conditions.Condition
	// Line returns the state in one line.
	Line func() status.Line
	// Status returns the whole state. It reads Redis, for a bounded time.
	Status func(context.Context) status.Status
	// API serves the paths below /api/.
	API http.Handler
}

type pages struct {
	Config
	access *access
}

// New returns the handler of all paths of the admin listener. Without a token, a page of another site could read
// everything by DNS rebinding, so every path then requires that httpauth.HasLocalHost returns true.
func New(c Config) http.Handler {
	return newPages(c).handler()
}

func newPages(c Config) *pages { return &pages{Config: c, access: newAccess(&c)} }

func (p *pages) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /login", p.login)
	mux.HandleFunc("POST /login", p.login)
	mux.HandleFunc("POST /logout", p.form(false, p.logout))
	mux.HandleFunc("GET /{$}", p.page(p.overview))
	mux.HandleFunc("GET /state", p.page(p.stateLine))
	mux.HandleFunc("GET /chart", p.plain(p.chartData))
	mux.HandleFunc("GET /uplot.js", library)
	mux.HandleFunc("GET /limits", p.page(p.limits))
	mux.HandleFunc("GET /limit", p.page(p.limit))
	mux.HandleFunc("GET /key", p.page(p.key))
	mux.HandleFunc("GET /change", p.page(p.preview))
	mux.HandleFunc("POST /change", p.form(true, p.change))
	mux.HandleFunc("GET /adjustments", p.page(p.adjustments))
	mux.HandleFunc("GET /configuration", p.page(p.configuration))
	mux.HandleFunc("POST /configuration/again", p.form(true, p.useAgain))
	mux.HandleFunc("GET /fleet", p.page(p.fleet))
	mux.HandleFunc("/api/", p.api)
	mux.HandleFunc("GET /metrics", p.plain(p.Metrics.ServeHTTP))
	mux.HandleFunc("GET /rlconfig", p.plain(p.rlconfig))
	mux.HandleFunc("/debug/pprof/", p.plain(p.profiles().ServeHTTP))
	mux.HandleFunc("/", p.plain(http.NotFound))
	if p.Token == nil {
		return httpauth.LocalHostOnly(mux, "without a token, use an address or localhost as the host name; or start the sidecar with --admin-token-file")
	}
	return p.access.headers(mux)
}

// page returns a handler that calls next for clients with permission to read. Others get the login form at the
// path that they requested, so that a link works after the login.
func (p *pages) page(next func(http.ResponseWriter, *http.Request, viewer)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := p.access.viewer(r)
		if !v.mayRead {
			p.showLogin(w, r, http.StatusUnauthorized, "")
			return
		}
		next(w, r, v)
	}
}

// form returns a handler that calls the function next only for a form that a page of this listener has sent, for a
// client with the permissions that the form needs. changes means that the form changes something.
func (p *pages) form(changes bool, next func(http.ResponseWriter, *http.Request, viewer)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := p.access.viewer(r)
		r.Body = http.MaxBytesReader(w, r.Body, maxFormBytes)
		if err := r.ParseForm(); err != nil {
			p.problem(w, r, v, http.StatusBadRequest, "The form cannot be read.", "")
			return
		}
		if why := p.access.refusal(r, v, changes); why != "" {
			p.problem(w, r, v, http.StatusForbidden, why, "")
			return
		}
		next(w, r, v)
	}
}

const maxFormBytes = 64 << 10

// plain is like page, for content other than pages. Clients without permission to read get status 401 instead of
// the login form.
func (p *pages) plain(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !p.access.viewer(r).mayRead {
			needsToken(w)
			return
		}
		next(w, r)
	}
}

// api serves requests of programs. If a token is configured, each request must contain one. api ignores cookies.
func (p *pages) api(w http.ResponseWriter, r *http.Request) {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case p.Token == nil, httpauth.HasToken(r, p.Token), reads && httpauth.HasToken(r, p.ReadToken):
		p.API.ServeHTTP(w, r)
	case httpauth.HasToken(r, p.ReadToken):
		http.Error(w, "this token may only read; changes need the admin token", http.StatusForbidden)
	default:
		needsToken(w)
	}
}

func needsToken(w http.ResponseWriter) {
	w.Header().Set("WWW-Authenticate", `Bearer realm="rlsidecar"`)
	http.Error(w, "a bearer token is needed", http.StatusUnauthorized)
}

// profiles serves net/http/pprof without the command line, which may contain tokens and passwords. Pages of
// other sites may not start a profile, because a profile consumes CPU time.
func (p *pages) profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol) // the pprof tool uses POST
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if httpauth.FromOtherSite(r) && !httpauth.HasToken(r, p.Token) && !httpauth.HasToken(r, p.ReadToken) {
			http.Error(w, "pages of other sites are refused", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// rlconfig prints one line for each limit at each place that uses it, in the format of the reference server.
func (p *pages) rlconfig(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	s := p.Current()
	if s == nil {
		return
	}
	var b bytes.Buffer
	for _, l := range s.Policies {
		fmt.Fprintf(&b, "%s: %s, shadow_mode: %t, quota_mode: %t\n", l.StatKey, numbers(l), l.Shadow, l.Quota)
	}
	_, _ = b.WriteTo(w) // an error here means that the client has disconnected
}

// numbers formats the numbers of p. It uses the reference form if the configuration did.
func numbers(p *limiter.Policy) string {
	l := p.Limit
	period := l.Period()
	length, zone := duration.Format(period), ""
	if l.Calendar != nil {
		length, zone = l.Calendar.Unit, " time_zone="+l.Calendar.Zone
	}
	switch {
	case p.Unlimited:
		return "unlimited: true"
	case p.Reference:
		return fmt.Sprintf("unit=%s requests_per_unit=%d%s", unit(period), l.Rate, zone)
	default:
		return fmt.Sprintf("algorithm=%s rate=%d period=%s capacity=%d%s", l.Kind, l.Rate, length, l.Capacity, zone)
	}
}

// unit returns the name of period in the reference server, or its length if it has no name.
func unit(period algorithms.Micros) string {
	for name, length := range map[string]algorithms.Micros{
		"SECOND": algorithms.Second, "MINUTE": 60 * algorithms.Second, "HOUR": 3600 * algorithms.Second,
		"DAY": algorithms.Day, "WEEK": 7 * algorithms.Day, "MONTH": 30 * algorithms.Day, "YEAR": 365 * algorithms.Day,
	} {
		if length == period {
			return name
		}
	}
	return duration.Format(period)
}
