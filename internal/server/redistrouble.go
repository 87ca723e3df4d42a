package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
)

const (
	// troubleTick is the time between two checks for failures of Redis.
	troubleTick = 5 * time.Second
	// troubleTicks is the number of ticks without a failure after which Redis counts as healthy again.
	troubleTicks = 12
)

// redisTrouble counts calls to Redis that failed.
type redisTrouble struct {
	count atomic.Uint64
	last  atomic.Pointer[error]
	open  atomic.Int32 // circuit breakers
}

func (t *redisTrouble) failed(err error) {
	t.count.Add(1)
	t.last.Store(&err)
}

// cause returns the last failure, as the end of a sentence, or "" if there was none.
func (t *redisTrouble) cause() string {
	if last := t.last.Load(); last != nil {
		return " (" + (*last).Error() + ")"
	}
	return ""
}

// isLate reports whether err means that an answer was late.
func isLate(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return errors.Is(err, context.DeadlineExceeded) || ok && timeout.Timeout()
}

// watchTrouble reports occasional failures of Redis, until ctx ends. Permanent failures are reported by the circuit
// breakers.
func (s *server) watchTrouble(ctx context.Context) {
	quiet := 0
	for seen := s.redisTrouble.count.Load(); sleep(ctx, troubleTick); {
		count := s.redisTrouble.count.Load()
		failed := count - seen
		seen = count
		switch {
		case s.redisTrouble.open.Load() > 0:
		case failed > 0:
			quiet = 0
			s.reportSlow(failed)
		default:
			if quiet++; quiet == troubleTicks {
				s.conditions.Clear(redisSlow)
			}
		}
	}
}

// reportSlow reports the number of failures within a tick.
func (s *server) reportSlow(failed uint64) {
	c := conditions.Condition{
		Name: redisSlow, Severity: conditions.Degraded,
		Summary: fmt.Sprintf("Redis could not decide %d batches of requests within %v%s. %s", failed, troubleTick, s.redisTrouble.cause(), s.meanwhile()),
		Remedy:  "Look at Redis: rlsidecar doctor says what is wrong with it.",
	}
	if last := s.redisTrouble.last.Load(); last != nil && isLate(*last) {
		c.Remedy = fmt.Sprintf("Its answers take longer than --backend-timeout (%v). rlsidecar doctor measures how long they take, and suggests a value.",
			s.config.Redis.Timeout)
	}
	s.conditions.Set(c)
}

// breakerChanged reports that the circuit breaker of a server of Redis has opened or closed.
func (s *server) breakerChanged(server string, open bool) {
	if !open {
		s.redisTrouble.open.Add(-1)
		s.conditions.Clear(breakerOpen + server)
		return
	}
	s.redisTrouble.open.Add(1)
	s.conditions.Clear(redisSlow) // the new condition is worse
	s.conditions.Set(conditions.Condition{
		Name: breakerOpen + server, Severity: conditions.Critical,
		Summary: "Redis at " + server + " gives no answer" + s.redisTrouble.cause() + ", and its circuit breaker is open. " + s.meanwhile(),
		Remedy:  "Check that Redis runs and can be reached; rlsidecar doctor says what is wrong with it. The circuit closes with its first answer.",
	})
}

// reportMistake reports that Redis refuses this sidecar.
func (s *server) reportMistake(place string, m *redis.Mistake) {
	s.conditions.Clear(redisAway + place)
	s.conditions.Set(conditions.Condition{
		Name: redisRefuses + place, Severity: conditions.Critical,
		Summary: "Redis at " + m.Server + " " + m.Says + ". This sidecar is not ready until Redis has decided once. " + s.meanwhile(),
		Remedy:  sentence(m.Remedy),
	})
}

// reportAway reports that a Redis has not answered since the start.
func (s *server) reportAway(place string, err error) {
	s.conditions.Set(conditions.Condition{
		Name: redisAway + place, Severity: conditions.Critical,
		Summary: "Redis at " + place + " has not answered since the start (" + err.Error() + "). " + s.meanwhile(),
		Remedy:  "Check the address, and that Redis runs and can be reached; rlsidecar doctor says what is wrong with it.",
	})
}
