package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/httpapi"
	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/metrics"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// adjustKeeper keeps adjustments, and reports when they change.
type adjustKeeper interface {
	adjust.Keeper
	// Watch has see called with the Set now, and with each one after it, one after the other.
	Watch(see func(*adjust.Set))
}

// adjustments applies the adjustments of a keeper to the limiter.
type adjustments struct {
	server  *server
	keeper  adjustKeeper
	service *adjust.Service

	mu      sync.Mutex
	applied *adjust.Set       // guarded by mu
	next    algorithms.Micros // when the first of them expires; 0: none does. Guarded by mu
	changed chan struct{}     // next has changed
}

// manyChanges is how many changed adjustments have the leases and denials of all buckets forgotten, because to
// look for the buckets of each would take longer.
const manyChanges = 100

// newAdjustments reads what is kept.
func (s *server) newAdjustments() (*adjustments, error) {
	key, err := s.auditKey()
	if err != nil {
		return nil, err
	}
	keeper, err := adjust.NewLocal(s.config.StateDir, adjust.NewChain(key), time.Now)
	if err != nil {
		return nil, err
	}
	a := &adjustments{server: s, keeper: keeper, applied: adjust.NewSet(adjust.Head{}, nil), changed: make(chan struct{}, 1)}
	a.service = adjust.NewService(keeper, s.limiter, func(e *adjust.Entry) {
		s.log.Info("adjustment", zap.Reflect("change", e))
	})
	keeper.Watch(a.apply)
	s.metrics.WatchAdjustments(a.stats)
	return a, nil
}

// auditKey is the secret of the audit's chain; nil: none was given.
func (s *server) auditKey() ([]byte, error) {
	if s.config.AuditKeyFile == "" {
		return nil, nil
	}
	key, err := os.ReadFile(s.config.AuditKeyFile)
	if err != nil {
		return nil, fmt.Errorf("key of the audit: %w", err)
	}
	text := strings.TrimSpace(string(key))
	if len(text) < 16 {
		return nil, fmt.Errorf("key of the audit: %s holds fewer than 16 characters; write a longer secret, such as that of: openssl rand -hex 32", s.config.AuditKeyFile)
	}
	return []byte(text), nil
}

// apply has set decide from now on, without what has expired. Loans of the buckets that it changes are given
// back, and their denials forgotten, as after a reload.
func (a *adjustments) apply(set *adjust.Set) {
	a.mu.Lock()
	defer a.mu.Unlock()
	set = set.Without(set.Expired(a.keeper.Now(), set.Len()))
	changed := adjust.Differences(a.applied, set)
	a.applied = set
	if len(changed) == 0 {
		return
	}
	keys, all := a.buckets(changed)
	stack := &a.server.stack
	if stack.lease != nil {
		if all {
			stack.lease.Forget()
		}
		for _, key := range keys {
			stack.lease.ForgetBucket(key)
		}
	}
	result := a.server.limiter.Adjust(set, a.keeper.Now)
	if stack.denied != nil {
		if all {
			stack.denied.Forget()
		}
		for _, key := range keys {
			stack.denied.ForgetBucket(key)
		}
	}
	a.next = result.Next
	a.server.log.Info("adjustments in use", zap.Uint64("version", set.Head.Version), zap.Int("applied", result.InForce), zap.Int("ignored", result.Ignored))
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// buckets are the keys of the buckets that changed is of, or all of them.
func (a *adjustments) buckets(changed []*adjust.Adjustment) (keys [][]byte, all bool) {
	if len(changed) > manyChanges {
		return nil, true
	}
	for _, one := range changed {
		of, every := a.server.limiter.Buckets(one)
		if every {
			return nil, true
		}
		keys = append(keys, of...)
	}
	return keys, false
}

// expire drops adjustments when they expire, until ctx ends. Requests do not wait for that: they compare the
// time themselves.
func (a *adjustments) expire(ctx context.Context) {
	const longest = time.Minute // the clock may be set meanwhile
	timer := time.NewTimer(longest)
	defer timer.Stop()
	for {
		a.mu.Lock()
		wait := longest
		if a.next > 0 {
			wait = min(longest, time.Duration(max(0, a.next-a.keeper.Now()))*time.Microsecond)
		}
		a.mu.Unlock()
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-a.changed:
		case <-timer.C:
			a.apply(a.keeper.Set())
		}
	}
}

// stats are for the metrics.
func (a *adjustments) stats() metrics.AdjustmentStats {
	result := a.server.limiter.Adjusted()
	stats := metrics.AdjustmentStats{Applied: result.InForce, Ignored: result.Ignored, Version: a.keeper.Set().Head.Version}
	if status := a.keeper.Status(); !status.Seen.IsZero() {
		stats.Age = time.Since(status.Seen)
	}
	return stats
}

// api answers operators.
func (a *adjustments) api() *httpapi.Adjustments {
	return &httpapi.Adjustments{Service: a.service, MayChange: a.server.mayChange}
}

var (
	errNoAdminToken = errors.New("the admin port has no token, and whatever shares this machine's loopback addresses could change limits; " +
		"start the sidecar with --admin-token-file, or with --admin-listen unix:///path")
	errReadToken = errors.New("this token may read only; bring the admin token")
)

// mayChange says why r may not change adjustments. An operator needs the admin token, or access to the Unix
// socket: other containers of a pod, and pages in a browser, reach a port of the loopback interface as well.
func (s *server) mayChange(r *http.Request) error {
	switch {
	case s.adminToken != nil && httpauth.Brings(r, s.adminToken):
		return nil
	case s.adminToken != nil:
		return errReadToken
	case httpauth.ThroughUnixSocket(r):
		return nil
	default:
		return errNoAdminToken
	}
}
