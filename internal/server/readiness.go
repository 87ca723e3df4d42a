package server

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/logthrottle"
)

const (
	// firstAnswer is how long the start and readiness wait for an unreachable Redis. A first request must not be
	// denied only because connecting takes time.
	firstAnswer = 3 * time.Second
	// provePause is the time between two attempts while readiness waits for Redis. laterPause is the time
	// between later attempts.
	provePause, laterPause = 50 * time.Millisecond, time.Second
	examinePause           = time.Minute
	// repeatMistake is the shortest interval at which the log repeats that Redis refuses this sidecar, or that Redis does
	// not answer.
	repeatMistake = time.Minute
)

// readiness is a gate that keeps the sidecar not ready until every Redis has decided once.
//
// If Redis is merely unreachable, the gate opens after firstAnswer, and on_backend_failure determines the
// answers. If Redis refuses this sidecar (a wrong password, TLS on one side only), the gate stays closed, so
// that a rollout with such a mistake stops at its first pod. Once open, the gate stays open.
type readiness struct {
	closedParts atomic.Int32
	opened      chan struct{} // closed when the gate opens
}

func newReadiness(stores int) *readiness {
	g := &readiness{opened: make(chan struct{})}
	if g.closedParts.Store(int32(stores)); stores == 0 {
		close(g.opened)
	}
	return g
}

// part returns a function that opens one store's part of the gate. The function may be called repeatedly.
func (g *readiness) part() (open func()) {
	return sync.OnceFunc(func() {
		if g.closedParts.Add(-1) == 0 {
			close(g.opened)
		}
	})
}

// awaitRedis follows Redis, and reads what the first request needs. If Redis does not answer, it reads nothing, so that
// the start takes no longer than firstAnswer.
func (s *server) awaitRedis(ctx, background context.Context, wg *sync.WaitGroup) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if away := s.followRedis(ctx, background, wg); away {
		cancel()
	}
	// A key that was blocked before a restart stays blocked.
	if err := s.adjust.keeper.Poll(ctx); err != nil {
		s.log.Warn("adjustments cannot be read from Redis yet, so none is in force; rlsidecar doctor finds the cause", zap.Error(err))
	}
	s.settle.prefetch(ctx, s.adjust.ledger)
}

// followRedis tries each Redis until that Redis has decided once, or background ends. followRedis returns
// when the state of every Redis is known, when firstAnswer has passed, or when ctx ends. away means that the first
// Redis, which has the adjustments, has not answered.
func (s *server) followRedis(ctx, background context.Context, wg *sync.WaitGroup) (away bool) {
	known := newReadiness(len(s.stack.redis))
	contacts := make([]*firstContact, len(s.stack.redis))
	for i, r := range s.stack.redis {
		f := &firstContact{server: s, redis: r, markKnown: known.part(), openGate: s.redisReadiness.part(), began: time.Now(),
			log: logthrottle.Log(s.log, repeatMistake)}
		contacts[i] = f
		wg.Go(func() { f.run(background) })
	}
	if len(s.stack.redis) > 0 {
		wg.Go(func() { s.watchFailures(background) })
	}
	select {
	case <-known.opened:
	case <-ctx.Done():
	}
	return len(contacts) > 0 && contacts[0].away.Load()
}

type firstContact struct {
	server              *server
	redis               *redis.Store
	markKnown, openGate func()
	began               time.Time
	refused             bool        // Redis has refused this sidecar, which therefore stays not ready until Redis has decided once
	away                atomic.Bool // Redis has not answered within firstAnswer
	log                 *zap.Logger
}

func (f *firstContact) run(ctx context.Context) {
	for pause := provePause; ; {
		err := f.redis.Prove(ctx)
		if ctx.Err() != nil {
			return
		}
		mistake, isMistake := errors.AsType[*redis.Mistake](err)
		switch {
		case err == nil:
			f.proven(ctx)
			return
		case isMistake:
			f.refused = true
			f.server.reportMistake(f.redis.Place(), mistake)
			f.log.Error("redis refuses this sidecar, which stays not ready until Redis has decided once; requests are answered by on_backend_failure; run rlsidecar doctor to find the cause",
				zap.String("server", mistake.Server), zap.String("cause", mistake.Problem), zap.String("remedy", mistake.Remedy))
			f.markKnown()
			pause = laterPause
		case time.Since(f.began) >= firstAnswer:
			f.away.Store(true)
			f.server.reportAway(f.redis.Place(), err)
			f.log.Error("redis does not answer; requests are answered by on_backend_failure until it does; check --redis-url with rlsidecar doctor", zap.Error(err))
			if !f.refused {
				f.openGate()
			}
			f.markKnown()
			pause = laterPause
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

// proven examines Redis, opens the gate, and repeats the examination until all checks pass. After that it checks
// only the clocks, at intervals.
func (f *firstContact) proven(ctx context.Context) {
	s := f.server
	for _, name := range []string{redisRefuses, redisAway} {
		if s.conditions.Clear(name + f.redis.Place()) {
			s.log.Info("redis has decided for the first time", zap.String("server", f.redis.Place()))
		}
	}
	unfit := s.reportFindings(f.redis.Examine(ctx, 0), nil)
	f.openGate()
	f.markKnown()
	for len(unfit) > 0 {
		if !sleep(ctx, examinePause) {
			return
		}
		unfit = s.reportFindings(f.redis.Examine(ctx, 0), unfit)
	}
	for sleep(ctx, examinePause) { // clocks may become wrong later, so these checks continue
		unfit = s.reportFindings(f.redis.ExamineClocks(ctx), unfit)
	}
}

// findingHeadlines has the headlines of failed checks, by their names.
var findingHeadlines = map[string]string{
	"clock":       "The clock of Redis and that of this machine differ",
	"eviction":    "Redis may evict buckets",
	"role":        "The server is a replica of Redis",
	"script":      "Redis cannot run the script that decides",
	"permissions": "The user of Redis lacks permissions",
	"adjustments": "The user of Redis lacks permissions for adjustments",
	"latency":     "Redis is nearly too slow for --backend-timeout",
	"cluster":     "Redis Cluster does not serve all slots",
	"coverage":    "If one master fails, Redis Cluster refuses all requests",
}

// reportFindings reports checks of Redis as conditions and metrics, and returns those that failed, by the names of their
// conditions. The failed checks in previous that found does not contain, or that passed, no longer count as failed.
func (s *server) reportFindings(found []redis.Finding, previous map[string]redis.Finding) map[string]redis.Finding {
	for _, f := range found {
		s.metrics.Examined(f.Server, f.Check, true)
	}
	unfit := map[string]redis.Finding{}
	for _, f := range found {
		if f.Severity.Fit() {
			continue
		}
		s.metrics.Examined(f.Server, f.Check, false)
		name := redisFinding + f.Check + "/" + f.Server
		unfit[name] = f
		c := conditions.Condition{
			Name: name, Severity: conditions.Warning, Headline: cmp.Or(findingHeadlines[f.Check], "Redis, "+f.Check+": "+f.Text),
			Summary: "Redis at " + f.Server + ", " + f.Check + ": " + f.Text + ".",
			Remedy:  "rlsidecar doctor reports it too. The check is repeated every minute until it passes.",
		}
		if f.Severity == redis.Problem {
			c.Severity = conditions.Degraded
		}
		if s.conditions.Set(c) {
			s.log.Warn("redis", zap.String("server", f.Server), zap.String("check", f.Check), zap.String("finding", f.Text))
		}
	}
	for name, f := range previous {
		if _, failed := unfit[name]; !failed {
			s.conditions.Clear(name)
			s.metrics.Examined(f.Server, f.Check, true)
		}
	}
	return unfit
}

// sleep returns false if ctx ends before pause is over.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
