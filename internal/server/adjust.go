package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/httpapi"
	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/metrics"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type adjustments struct {
	server  *server
	keeper  *adjust.Keeper
	service *adjust.Service
	ledger  *redis.Ledger // nil unless the adjustments are in Redis

	mu      sync.Mutex
	applied *adjust.Set // guarded by mu

	loggedRewritten uint64 // used only by report
}

// manyChanges is the number of changed adjustments above which the leases and cached denials of all buckets
// are dropped. Finding the buckets of so many adjustments would take longer.
const manyChanges = 100

// newAdjustments opens the keeper, which awaitRedis lets read the adjustments in Redis.
func (s *server) newAdjustments() (*adjustments, error) {
	a := &adjustments{server: s, applied: adjust.NewSet(adjust.Head{}, nil)}
	config := adjust.Config{Changed: a.apply}
	if s.config.Redis.URL != "" {
		var err error
		if a.ledger, err = s.config.Redis.ledger(); err != nil {
			return nil, err
		}
		config.Ledger = a.ledger
	}
	a.keeper = adjust.NewKeeper(config)
	a.service = adjust.NewService(a.keeper, s.limiter, func(e *adjust.Entry) {
		s.log.Info("adjustment", zap.Reflect("change", e))
	})
	s.metrics.WatchAdjustments(a.stats)
	return a, nil
}

func (a *adjustments) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if a.ledger != nil {
		wg.Go(func() { a.keeper.Run(ctx, a.report) })
	}
	a.expire(ctx)
}

func (a *adjustments) close() {
	if a.ledger != nil {
		a.ledger.Close()
	}
}

const (
	adjustmentsOff   = "adjustments-off"
	adjustmentsStale = "adjustments-stale"
	adjustmentsLost  = "adjustments-lost"
	staleAfter       = 10 * time.Second
)

func (a *adjustments) report() {
	status, registry := a.keeper.Status(), a.server.conditions
	a.reportLost(&status)
	forbidden := errors.Is(status.Err, redis.ErrForbidden)
	if forbidden {
		registry.Set(conditions.Condition{
			Name: adjustmentsOff, Severity: conditions.Warning, Headline: "Limits cannot be adjusted: the Redis user lacks permissions",
			Summary: "Limits cannot be adjusted while the sidecar runs: " + status.Err.Error() + ".",
			Remedy:  "Permit the user in Redis what the summary names; rlsidecar doctor checks it.",
		})
	} else {
		registry.Clear(adjustmentsOff)
	}
	if status.Err == nil || forbidden || time.Since(status.Seen) < staleAfter {
		registry.Clear(adjustmentsStale)
		return
	}
	registry.Set(conditions.Condition{
		Name: adjustmentsStale, Severity: conditions.Warning, Headline: "Adjustments are not up to date: Redis does not answer",
		Summary: fmt.Sprintf("Adjustments are not up to date: %s Known adjustments (%d) stay in force until they expire.",
			strings.TrimSuffix(status.Err.Error(), ".")+".", a.keeper.Set().Len()),
		Remedy: "Check that Redis runs and can be reached.",
	})
}

func (a *adjustments) reportLost(status *adjust.Status) {
	if n := status.Rewritten - a.loggedRewritten; n > 0 {
		a.loggedRewritten = status.Rewritten
		a.server.log.Warn("Redis had lost changes of adjustments, for example in a failover; this sidecar has written them again", zap.Uint64("changes", n))
	}
	if len(status.Lost) == 0 {
		a.server.conditions.Clear(adjustmentsLost)
		return
	}
	const mostNamed = 20
	var targets []string
	for _, lost := range status.Lost[:min(len(status.Lost), mostNamed)] {
		targets = append(targets, fmt.Sprintf("%s (%s, by %s)", lost.Target.String(), lost.Change.String(), descriptors.Printable(lost.Author)))
	}
	if more := len(status.Lost) - mostNamed; more > 0 {
		targets = append(targets, fmt.Sprintf("%d more", more))
	}
	summary := "Redis has lost changes of adjustments, for example in a failover, and other changes were made since. Not as they were set or deleted: " +
		strings.Join(targets, "; ") + "."
	isNew := a.server.conditions.Set(conditions.Condition{
		Name: adjustmentsLost, Severity: conditions.Degraded, Headline: "Redis has lost adjustments: set them again", Summary: summary,
		Remedy: "Set or delete each of them again (rlsidecar adjust set, rlsidecar adjust delete). The condition ends when you have, or when they expire.",
	})
	if isNew {
		a.server.log.Error("Redis has lost changes of adjustments; set or delete them again", zap.Strings("lost", targets))
	}
}

// apply puts set in force, without its expired adjustments. Like a reload, it returns the leases of the
// affected buckets and removes their cached denials.
func (a *adjustments) apply(set *adjust.Set) {
	a.mu.Lock()
	defer a.mu.Unlock()
	set = set.Live(a.keeper.Now())
	changed := adjust.Differences(a.applied, set)
	a.applied = set
	if len(changed) == 0 {
		return
	}
	var result limiter.Adjusted
	keys, all := a.buckets(changed)
	a.server.stack.forgetting(keys, all, func() { result = a.server.limiter.Adjust(set, a.keeper.Now) })
	if a.server.watch != nil {
		text := changed[0].Target.String() + ": " + changed[0].Change.String()
		if set.Find(changed[0].ID) == nil {
			text += " ended"
		}
		if more := len(changed) - 1; more > 0 {
			text += fmt.Sprintf(" (and %d more)", more)
		}
		a.server.watch.history.Mark(time.Now(), text)
	}
	a.server.log.Info("adjustments in use", zap.Uint64("version", set.Head.Version), zap.Int("applied", result.InForce), zap.Int("ignored", result.Ignored))
}

// buckets returns the keys of the buckets that the adjustments in changes affect. all means that keys is nil, because
// there are too many, or because an adjustment may affect every bucket of its limit.
func (a *adjustments) buckets(changes []*adjust.Adjustment) (keys [][]byte, all bool) {
	if len(changes) > manyChanges {
		return nil, true
	}
	for _, one := range changes {
		of, every := a.server.limiter.Buckets(one)
		if every {
			return nil, true
		}
		keys = append(keys, of...)
	}
	return keys, false
}

// expire drops expired adjustments each second until ctx ends. An expired adjustment has no effect even before expire
// drops it, because each request compares the time.
func (a *adjustments) expire(ctx context.Context) {
	for sleep(ctx, time.Second) {
		if next := a.server.limiter.Adjusted().Next; next > 0 && next <= a.keeper.Now() {
			a.apply(a.keeper.Set())
		}
	}
}

func (a *adjustments) stats() metrics.AdjustmentStats {
	return metrics.AdjustmentStats{Adjusted: a.server.limiter.Adjusted(), Status: a.keeper.Status(), Version: a.keeper.Set().Head.Version}
}

func (a *adjustments) api() *httpapi.Adjustments {
	return &httpapi.Adjustments{Service: a.service, MayChange: a.server.mayChange}
}

var (
	errNoAdminToken = errors.New("the admin port has no token, so every program with access to this machine's loopback addresses could change limits; " +
		"start the sidecar with --admin-token-file, or with --admin-listen unix:///path")
	errReadToken = errors.New("this token may only read; send the admin token")
)

// mayChange returns nil if r may change adjustments, or else the reason why not. A change needs the admin token if one
// is configured. Otherwise it needs access through the Unix socket. Access to a port of the loopback interface is not
// enough, because other containers of the pod and pages in a browser have such access too.
func (s *server) mayChange(r *http.Request) error {
	switch {
	case s.tokens.admin != nil && httpauth.HasToken(r, s.tokens.admin):
		return nil
	case s.tokens.admin != nil:
		return errReadToken
	case httpauth.ThroughUnixSocket(r):
		return nil
	default:
		return errNoAdminToken
	}
}
