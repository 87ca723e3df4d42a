package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/backend/redis"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit/limitsfile"
)

// TestAGoProgramSettlesWithTheSidecars runs a Go program with the limits, Redis and signing key of a sidecar.
// It settles reservations of a proxy and of an application, and the sidecar settles reservations of the
// program. Each reservation is settled once.
func TestAGoProgramSettlesWithTheSidecars(t *testing.T) {
	t.Parallel()
	url := "redis://" + redistest.Start(t).Addr
	s := startSettler(t, "--redis-url", url, "--backend-timeout", "5s", "--settle-key-file", fileOf(t, "keys", keyLine(firstKey)))
	config, err := limitsfile.Load("ai", budgetFile(t))
	if err != nil {
		t.Fatal(err)
	}
	store, err := redis.Open(redis.Config{URL: url, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	config.Store, config.Secret = store, strings.TrimSpace(keyLine(firstKey))
	program, err := ratelimit.New(config)
	if err != nil {
		t.Fatal(err)
	}

	for _, id := range []string{s.mustStart("user=bob"), s.reserve("tokens", "bob", 200)} {
		var r ratelimit.Reservation
		if err := r.UnmarshalText([]byte(id)); err != nil {
			t.Fatal(err)
		}
		if _, err := program.Settle(t.Context(), r, 30); err != nil {
			t.Error(err)
		}
		if err := s.done(id, 90); err != nil { // the reservation is settled already
			t.Error(err)
		}
	}
	s.want("tokens", "bob", 1_000_000-60)

	reserve := func() (id string) {
		r, err := program.ReserveN(t.Context(), 500, "tokens", "eve")
		if err != nil {
			t.Fatal(err)
		}
		text, err := r.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	s.mustSettle(reserve(), 7)
	if err := s.done(reserve(), 7); err != nil {
		t.Error(err)
	}
	s.want("tokens", "eve", 1_000_000-14)
}
