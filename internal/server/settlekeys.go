package server

import (
	"context"
	"crypto/rand"
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// settleKeys holds the secrets that sign reservations. They come from --settle-key-file, or else from the
// token of the HTTP API. Without either, all sidecars on one Redis share a random secret. A sidecar without Redis
// has a random secret of its own, and so has one whose Redis has not answered yet: on_backend_failure may give slots of
// this process, whose ids must be signed.
type settleKeys struct {
	server *server
	file   func() []string          // nil without --settle-key-file
	tokens atomic.Pointer[[]string] // the current token of the HTTP API, and the previous one
	random atomic.Pointer[[]string] // the current random secret, and the previous one. The first one is that of this sidecar
	known  atomic.Bool              // Redis has answered
	used   atomic.Bool              // the random secret was needed to sign or open an id
	keys   *reservation.Keys
}

// These are the intervals at which the random secret is read from Redis: settleKeySoon until the secret is
// known, and settleKeyLater afterwards, in case Redis loses the secret.
const (
	settleKeySoon  = 500 * time.Millisecond
	settleKeyLater = 30 * time.Second
)

func (s *server) newSettleKeys() (*settleKeys, error) {
	k := &settleKeys{server: s}
	if path := s.config.SettleKeyFile; path != "" {
		var err error
		if k.file, err = httpauth.FileSecrets(path, s.log); err != nil {
			return nil, err
		}
	}
	k.keys = reservation.NewKeys(k.secrets)
	own := rand.Text() + rand.Text()
	if s.config.Redis.URL == "" { // the buckets are in this process, so no other one may settle its reservations
		k.keys.OfStore(own)
	}
	k.random.Store(&[]string{own})
	if api := s.tokens.api; api != nil { // another sidecar may sign with it before this one signs or opens an id
		k.ofToken(api())
	}
	return k, nil
}

func (k *settleKeys) secrets() []string {
	switch {
	case k.file != nil:
		return k.file()
	case k.server.tokens.api != nil:
		return k.ofToken(k.server.tokens.api())
	default:
		if !k.used.Load() {
			k.used.Store(true)
		}
		return *k.random.Load()
	}
}

// ofToken returns the token and the previous one, so that a change of the token does not invalidate
// reservations.
func (k *settleKeys) ofToken(token string) []string {
	have := k.tokens.Load()
	if have != nil && (*have)[0] == token {
		return *have
	}
	next := []string{token}
	if have != nil {
		next = append(next, (*have)[0])
	}
	k.tokens.Store(&next)
	return next
}

func (k *settleKeys) isShared() bool {
	return k.file == nil && k.server.tokens.api == nil && k.server.config.Redis.URL != ""
}

// prefetch reads the secret before the first request. A later configuration may be the first one that needs it. ctx bounds
// the wait.
func (k *settleKeys) prefetch(ctx context.Context, ledger *redis.Ledger) {
	if k.isShared() {
		_ = k.get(ctx, ledger) // run retries, and reports the error
	}
}

// isNeeded reports whether a domain has limits with ids.
func (k *settleKeys) isNeeded() bool {
	if s := k.server.limiter.Current(); s != nil {
		for _, d := range s.Domains {
			if d.Settle != nil {
				return true
			}
		}
	}
	return false
}

func (k *settleKeys) run(ctx context.Context, ledger *redis.Ledger) {
	if !k.isShared() {
		return
	}
	var readAt time.Time
	var err error
	for {
		if !k.known.Load() || time.Since(readAt) >= settleKeyLater {
			readAt = time.Now()
			err = k.get(ctx, ledger)
		}
		if ctx.Err() == nil && (err == nil || k.used.Load() || k.isNeeded()) {
			k.report(err)
		}
		if !sleep(ctx, settleKeySoon) {
			return
		}
	}
}

const settleKeyMissing = "settle-key-not-shared"

func (k *settleKeys) report(err error) {
	if err == nil {
		k.server.conditions.Clear(settleKeyMissing)
		return
	}
	c := conditions.Condition{
		Name: settleKeyMissing, Severity: conditions.Warning, Summary: "The key that signs reservations cannot be read from Redis",
		Remedy: "Give all sidecars the same --settle-key-file, or make Redis answer.",
	}
	if errors.Is(err, redis.ErrForbidden) {
		c.Summary = "The user of Redis may not read the key that signs reservations"
		c.Remedy = "Give all sidecars the same --settle-key-file, or allow the user what doctor lists."
	}
	c.Summary += ", so this sidecar uses its own. What another sidecar reserved cannot be settled here and stays charged: " + err.Error() + "."
	if k.server.conditions.Set(c) {
		k.server.log.Warn(c.Summary+" "+c.Remedy, zap.String("condition", c.Name))
	}
}

// get puts the secret from Redis in use, and proposes the present one to Redis. It still accepts the previous secret. The
// error is that of Redis. If the user of Redis may not read the secret, get need not be called again soon.
func (k *settleKeys) get(ctx context.Context, ledger *redis.Ledger) error {
	have := (*k.random.Load())[0]
	secret, err := ledger.Secret(ctx, have)
	if err == nil || errors.Is(err, redis.ErrForbidden) {
		k.known.Store(true)
	}
	if err == nil && have != secret {
		k.random.Store(&[]string{secret, have})
	}
	return err
}

// wallClock returns the time of the wall clock, which decides whether a reservation is late. Sidecars settle
// each other's reservations, so their clocks must agree.
func wallClock() algorithms.Micros { return algorithms.Micros(time.Now().UnixMicro()) }
