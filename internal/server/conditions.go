package server

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
)

// These are the names of the conditions that this package reports. If a name ends in a slash, the address
// of a Redis server follows.
const (
	configurationRefused = "configuration-refused"
	breakerOpen          = "redis-breaker-open/"
	redisRefuses         = "redis-refuses/"
	redisAway            = "redis-away/"
	redisFinding         = "redis-" // the name of the check, a slash and the address follow
	redisSlow            = "redis-slow"
	metricsOverflow      = "metrics-overflow"
	authMissing          = "auth-not-configured"
)

func (s *server) reportReload(problems config.Problems) {
	if !problems.Bad() {
		s.conditions.Clear(configurationRefused)
		return
	}
	mistakes, first, short := 0, "", ""
	for _, p := range problems {
		if p.Warning {
			continue
		}
		if mistakes++; mistakes == 1 {
			first = p.String()
			short = strings.TrimPrefix(first, filepath.Dir(p.File)+string(filepath.Separator)) // the line of state has little room
		}
	}
	if mistakes > 1 {
		first += fmt.Sprintf(" (and %d more)", mistakes-1)
	}
	s.conditions.Set(conditions.Condition{
		Name: configurationRefused, Severity: conditions.Degraded, Headline: "New configuration refused, the old one stays: " + short,
		Summary: "The configuration was refused, and the previous one stays in use: " + first + ".",
		Remedy:  "Correct the configuration; it is read again when it changes. rlsidecar check finds all mistakes.",
	})
}

func (s *server) reportOverflow() {
	if !s.metrics.Folding() {
		return
	}
	if s.conditions.Set(conditions.Condition{
		Name: metricsOverflow, Severity: conditions.Warning, Headline: "Metrics count some limits together; limits work as configured",
		Summary: "More than 10,000 limits or domains have decided requests: the metrics count the others together, as (overflow). Limits work as configured.",
		Remedy:  "Limits need no action. To see the metrics of each limit, divide the configuration among several sidecars, or remove limits that are not used.",
	}) {
		s.log.Warn("some limits are counted together in the metrics, as (overflow), because only 10,000 limits can have their own series; rlsidecar_metrics_folded reports their number")
	}
}

func (s *server) reportNoAuth() {
	added := s.conditions.Set(conditions.Condition{
		Name: authMissing, Severity: conditions.Critical, Headline: "A proxy calls /v1/auth, which has no routes: all its requests are denied",
		Summary: "A proxy calls /v1/auth, and the configuration has no auth section: every such request is denied.",
		Remedy:  "Add a section auth with routes to a configuration file, or configure the proxy to use another listener.",
	})
	if added {
		s.log.Error("a proxy calls /v1/auth, and the configuration has no auth section: every such request is denied; add auth with routes to a configuration file")
	}
}

// checkAuth runs at the start and after each load. It logs its warning once.
func (s *server) checkAuth(snapshot *limiter.Snapshot) {
	if snapshot.Auth != nil {
		s.conditions.Clear(authMissing)
	} else if s.config.HTTP != "" && s.noAuthLogged.CompareAndSwap(false, true) {
		s.log.Warn("the configuration has no auth section: /v1/auth, which NGINX and other gateways call, denies every request; Envoy, /json and /v1/limit do not need it")
	}
}

func countOf(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}

func sentence(clause string) string {
	if clause == "" {
		return ""
	}
	return strings.ToUpper(clause[:1]) + clause[1:] + "."
}

// usesNamed reports whether p only refers to a named limit. The named limit has a policy of its own in s.
func usesNamed(s *limiter.Snapshot, p *limiter.Policy) bool {
	if p.Extra().Named {
		return false
	}
	d := s.Domains[p.Domain]
	return d != nil && d.Named[p.Name] != nil && d.Named[p.Name].Owner == p.Owner
}

func (s *server) answeredMeanwhile() string { return "Meanwhile requests are " + s.answeredBy() }

// answeredBy returns the end of a sentence. It tells by which on_backend_failure requests are answered while the
// backend fails, and for how many limits each value is set.
func (s *server) answeredBy() string {
	counts := map[limiter.OnFailure]int{}
	if current := s.limiter.Current(); current != nil {
		for _, p := range current.Policies {
			if !p.Unlimited && !usesNamed(current, p) {
				counts[p.OnFailure]++
			}
		}
	}
	var texts []string
	for _, mode := range []limiter.OnFailure{limiter.Deny, limiter.Allow, limiter.Local, limiter.Error} {
		if n := counts[mode]; n > 0 {
			texts = append(texts, fmt.Sprintf("%s (%s)", mode, countOf(n, "limit", "limits")))
		}
	}
	if len(texts) == 0 {
		return "answered by on_backend_failure."
	}
	return "answered by on_backend_failure: " + strings.Join(texts, ", ") + "."
}
