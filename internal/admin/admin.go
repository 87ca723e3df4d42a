// Package admin is what an operator looks at: metrics, the limits in use, what is denied and why,
// profiles, and a page that leads to them.
package admin

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/denials"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Config is what the pages are made of. The functions are called for each page.
type Config struct {
	// Token, if not nil, must come with every request: Authorization: Bearer TOKEN.
	Token httpauth.Token
	// Version of the program.
	Version string
	// Metrics serves /metrics.
	Metrics http.Handler
	// Current is the configuration in use.
	Current func() *limiter.Snapshot
	// Reload is how the last load of the configuration went.
	Reload func() Reload
	// Counts is how often a limit allowed and denied.
	Counts func(*descriptors.Policy) (allowed, denied uint64)
	// Denied is the n keys denied most, and since when they are counted.
	Denied func(n int) (since time.Time, top []denials.Denied)
	// Conditions is what is wrong now, the worst first.
	Conditions func() []conditions.Condition
	// API serves what is below /api/.
	API http.Handler
}

// Reload is how the last load of a configuration went.
type Reload struct {
	// Paths the configuration is read from.
	Paths []string
	// Loaded is when the configuration in use was loaded.
	Loaded time.Time
	// Failed is when a later one was refused; zero: none was. Problems says why, a line each.
	Failed   time.Time
	Problems string
	// Stale are the domains that the last one did not change, because of a mistake in them.
	Stale []string
}

// New makes the handler of all paths. Without a token a web page could read all of it, and reset
// buckets, were its own name made to lead here: every path requires a name of this machine then.
func New(c Config) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", c.index)
	mux.Handle("/api/", c.API)
	mux.Handle("GET /metrics", c.Metrics)
	mux.HandleFunc("GET /rlconfig", c.rlconfig)
	mux.Handle("/debug/pprof/", c.profiles())
	if c.Token == nil {
		return httpauth.ThisMachineOnly(mux, "without a token, ask by an address or as localhost; or start the sidecar with --admin-token-file")
	}
	return guarded(c.Token, mux)
}

// profiles serves net/http/pprof, but not the command line: it may hold tokens and passwords. A profile
// costs processor time, so that without a token no page of another site may start one.
func (c *Config) profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol) // as the pprof tool does
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.Token == nil && httpauth.FromOtherSite(r) {
			http.Error(w, "pages of other sites cannot ask", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// guarded lets only those pass who bring token.
func guarded(token httpauth.Token, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !httpauth.Brings(r, token) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="rlsidecar"`)
			http.Error(w, "a bearer token is needed", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// rlconfig prints a line for each limit, as the reference server does.
func (c *Config) rlconfig(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	s := c.Current()
	if s == nil {
		return
	}
	var b bytes.Buffer
	for _, p := range s.Policies {
		fmt.Fprintf(&b, "%s: %s, shadow_mode: %t, quota_mode: %t\n", p.StatKey, numbers(p), p.Shadow, p.Quota)
	}
	_, _ = b.WriteTo(w) // an error is the reader's
}

// numbers prints the numbers of p: in the reference form if it was written so.
func numbers(p *descriptors.Policy) string {
	l := &p.Limit
	period := algorithms.Micros(l.Period) * l.Tick
	length, zone := descriptors.Span(period), ""
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

// unit is the reference server's name for period.
func unit(period algorithms.Micros) string {
	for name, length := range map[string]algorithms.Micros{
		"SECOND": algorithms.Second, "MINUTE": 60 * algorithms.Second, "HOUR": 3600 * algorithms.Second,
		"DAY": algorithms.Day, "WEEK": 7 * algorithms.Day, "MONTH": 30 * algorithms.Day, "YEAR": 365 * algorithms.Day,
	} {
		if length == period {
			return name
		}
	}
	return descriptors.Span(period)
}
