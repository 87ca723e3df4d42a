package e2e

import (
	"errors"
	"net/http"
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

	byProxy, byApplication := s.mustStart("user=bob"), s.reserve("tokens", "bob", 200)
	for i, id := range []string{byProxy, byApplication} {
		var r ratelimit.Reservation
		if err := r.UnmarshalText([]byte(id)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := program.Settle(t.Context(), r, 30); err != nil {
				t.Errorf("reservation %d: settlement by the program: %v", i, err)
			}
		}
		if err := s.done(id, 90); err != nil { // the reservation is settled already
			t.Error(err)
		}
		if _, err := program.Settle(t.Context(), r, 31); !errors.Is(err, ratelimit.ErrReused) {
			t.Errorf("reservation %d, another cost: got %v, want %v", i, err, ratelimit.ErrReused)
		}
	}
	s.want("tokens", "bob", 1_000_000-60)

	for n, settle := range []func(id string) error{
		func(id string) error { return s.done(id, 7) },
		func(id string) error {
			if code, answer := s.settle(id, 7); code != http.StatusOK {
				return errors.New(answer)
			}
			return nil
		},
	} {
		r, err := program.ReserveN(t.Context(), 500, "tokens", "eve")
		if err != nil {
			t.Fatal(err)
		}
		id, err := r.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := settle(string(id)); err != nil {
				t.Error(err)
			}
		}
		if result, err := program.Settle(t.Context(), r, 7); err != nil || result.Remaining != 1_000_000-7*int64(n+1) {
			t.Errorf("got %+v %v; want %d remaining", result, err, 1_000_000-7*int64(n+1))
		}
		s.want("tokens", "eve", 1_000_000-7*(n+1))
	}
}
