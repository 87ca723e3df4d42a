package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
)

const (
	failureTick = time.Second
	// healthyTicks is the number of ticks without a failure after which Redis counts as healthy again. The condition ends
	// at most three seconds after the last failure, because the line of state may need five seconds to turn green, and a
	// page requests it every second.
	healthyTicks = 2
	// breakerQuiet is how long a circuit breaker must be closed until its condition ends. The breaker of a server that is
	// too slow opens and closes all the time.
	breakerQuiet = 1500 * time.Millisecond
)

type redisFailures struct {
	count          atomic.Uint64
	last           atomic.Pointer[error]
	openBreakers   atomic.Int32
	breakerWasOpen atomic.Bool // a circuit breaker was open at some time since the last call of the method recent
	lastCount      uint64      // the value of count at the last call of the method recent

	mu     sync.Mutex
	closed map[string]time.Time // when the circuit breaker of a server closed, until its condition ends; guarded by mu
}

// ended returns the servers whose circuit breakers closed before the time at and did not open since, and forgets them.
func (t *redisFailures) ended(at time.Time) (servers []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for server, closed := range t.closed {
		if closed.Before(at) {
			servers = append(servers, server)
			delete(t.closed, server)
		}
	}
	return servers
}

// recent returns the number of failures since its last call. It returns 0 if a circuit breaker was
// open in that time. The condition of the circuit breaker describes such failures, and they do not mean that
// a server which answers again is slow.
func (t *redisFailures) recent() uint64 {
	count := t.count.Load()
	failed := count - t.lastCount
	t.lastCount = count
	if isOpen := t.openBreakers.Load() > 0; t.breakerWasOpen.Swap(isOpen) || isOpen {
		return 0
	}
	return failed
}

func (t *redisFailures) failed(err error) {
	t.count.Add(1)
	t.last.Store(&err)
}

func (t *redisFailures) changed(server string, open bool) {
	t.mu.Lock()
	if t.closed == nil {
		t.closed = map[string]time.Time{}
	}
	delete(t.closed, server)
	if !open {
		t.closed[server] = time.Now()
	}
	t.mu.Unlock()
	if !open {
		t.openBreakers.Add(-1)
		return
	}
	t.openBreakers.Add(1)
	t.breakerWasOpen.Store(true)
}

// lastText returns the last failure, or "".
func (t *redisFailures) lastText() string {
	if last := t.last.Load(); last != nil {
		return (*last).Error()
	}
	return ""
}

func isLate(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return errors.Is(err, context.DeadlineExceeded) || ok && timeout.Timeout()
}

// watchFailures reports occasional failures of Redis, until ctx ends. The circuit breakers report permanent
// failures.
func (s *server) watchFailures(ctx context.Context) {
	for quiet := 0; sleep(ctx, failureTick); {
		for _, server := range s.redisFailures.ended(time.Now().Add(-breakerQuiet)) {
			s.conditions.Clear(breakerOpen + server)
		}
		if failed := s.redisFailures.recent(); failed > 0 {
			quiet = 0
			s.reportSlow(failed)
		} else if quiet++; quiet == healthyTicks {
			s.conditions.Clear(redisSlow)
		}
	}
}

func (s *server) reportSlow(failedBatches uint64) {
	c := conditions.Condition{
		Name: redisSlow, Severity: conditions.Degraded,
		Summary: fmt.Sprintf("Redis could not decide %s of requests in the second before %s. They were %s",
			countOf(int(failedBatches), "batch", "batches"), time.Now().UTC().Format("15:04:05 UTC"), s.answeredBy()),
		Remedy: "Run rlsidecar doctor to find the cause.", Headline: "Redis fails sometimes", Error: s.redisFailures.lastText(),
	}
	if last := s.redisFailures.last.Load(); last != nil && isLate(*last) {
		c.Headline = fmt.Sprintf("Redis too slow, timeout %v", s.config.Redis.Timeout)
		c.Remedy = fmt.Sprintf("Its answers take longer than --backend-timeout (%v). rlsidecar doctor measures how long they take, and suggests a value.",
			s.config.Redis.Timeout)
	}
	s.conditions.Set(c)
}

func (s *server) breakerChanged(server string, open bool) {
	s.redisFailures.changed(server, open)
	if !open {
		return
	}
	s.conditions.Clear(redisSlow) // the condition that follows is more severe
	s.conditions.Set(conditions.Condition{
		Name: breakerOpen + server, Severity: conditions.Critical, Headline: "Redis gives no answer in time", Error: s.redisFailures.lastText(),
		Summary: "Redis at " + server + " gives no answer, and its circuit breaker is open. " + s.answeredMeanwhile(),
		Remedy:  "Check that Redis runs and can be reached; rlsidecar doctor finds the cause. The circuit breaker closes with the first answer.",
	})
}

func (s *server) reportMistake(place string, m *redis.Mistake) {
	s.conditions.Clear(redisAway + place)
	clause, reply, _ := strings.Cut(m.Problem, " (")
	s.conditions.Set(conditions.Condition{
		Name: redisRefuses + place, Severity: conditions.Critical, Headline: "Redis " + clause, Error: strings.TrimSuffix(reply, ")"),
		Summary: "Redis at " + m.Server + " " + clause + ". This sidecar is not ready until Redis has decided once. " + s.answeredMeanwhile(),
		Remedy:  sentence(m.Remedy),
	})
}

func (s *server) reportAway(place string, err error) {
	s.conditions.Set(conditions.Condition{
		Name: redisAway + place, Severity: conditions.Critical, Headline: "Redis has not answered since the start", Error: err.Error(),
		Summary: "Redis at " + place + " has not answered since the start. " + s.answeredMeanwhile(),
		Remedy:  "Check the address, and that Redis runs and can be reached; rlsidecar doctor finds the cause.",
	})
}
