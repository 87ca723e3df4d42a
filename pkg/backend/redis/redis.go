// Package redis keeps buckets in Redis: one server, a master watched by Sentinels, or a Cluster. A script on the server
// decides and charges in one step, so that any number of processes share the same limits.
//
// If Redis does not answer a call within Config.Timeout, the error is backend.ErrUnavailable. The Store never repeats a
// call that may have been charged.
//
// It needs Redis 6.2 or later, or Valkey, with maxmemory-policy noeviction. docs/redis.md in the repository has the
// permissions that the user of Redis needs.
package redis

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Config configures a Store.
type Config struct {
	// URL is the address of Redis:
	//
	//	redis://[user:password@]host:port[/db]          rediss:// with TLS
	//	unix://[user:password@]/path[?db=N]
	//	redis+sentinel://[user:password@]host:port[,host:port]…/master[?db=N&sentinel_password=…]
	//	redis+cluster://[user:password@]host:port[,host:port]…
	//
	// rediss+sentinel:// and rediss+cluster:// use TLS.
	URL string
	// Timeout is the timeout of a call; 0 means 10 ms, which suits a server in the same data center. Calls for
	// detached batches, such as refunds, and for groups of more than 256 charges may take 250 ms, if that is longer.
	Timeout time.Duration
	// KeyPrefix starts the name of every key; "" means "rl:". It must not contain braces.
	KeyPrefix string
	// PasswordFile is a file with "password" or "user:password". It is read for every new connection, so that
	// credentials can be rotated.
	PasswordFile string
	// TLS is used with the rediss forms of URL; nil means the certificate authorities of the system.
	TLS *tls.Config
	// WaitReplicas is the number of replicas that must confirm a charge within three quarters of Timeout.
	// Otherwise the error is backend.ErrUnavailable, and the units stay consumed. If all replicas must
	// confirm, a failover loses no allowed request, but one missing replica makes all requests fail.
	WaitReplicas int
	// Clock returns the time of decisions; nil means the clock of each server. It is for tests.
	Clock func() time.Time
	// OnBreaker, if not nil, is called when the circuit breaker of a server opens because the server does
	// not answer, and again when it closes.
	OnBreaker func(server string, open bool)
	// OnPanic, if not nil, is called with the value of a panic on a goroutine of the Store. The program
	// continues. The charges that this goroutine was deciding fail.
	OnPanic func(value any)
}

// Store is a backend.Store in Redis. It is safe for concurrent use.
type Store struct{ store *redis.Store }

// Open makes a Store. It does not wait for Redis: charges fail until a server answers. An error means a
// mistake in the Config, or a password file that cannot be read.
func Open(c Config) (*Store, error) {
	internal := redis.Config{
		URL: c.URL, Timeout: c.Timeout, KeyPrefix: c.KeyPrefix, PasswordFile: c.PasswordFile, TLS: c.TLS,
		WaitReplicas: c.WaitReplicas, Changed: c.OnBreaker, Panicked: c.OnPanic,
	}
	if c.Clock != nil {
		internal.Clock = func() algorithms.Micros { return algorithms.Micros(c.Clock().UnixMicro()) }
	}
	store, err := redis.Open(internal)
	if err != nil {
		return nil, err
	}
	return &Store{store}, nil
}

// Submit implements backend.Store.
func (s *Store) Submit(b *backend.Batch) { s.store.Submit(b) }

// Ping waits until Redis (in a Cluster, every master) answers, at most until ctx ends.
func (s *Store) Ping(ctx context.Context) error { return s.store.Ping(ctx) }

// Close waits for refunds in flight, fails all batches that have not been sent, and closes all connections. A
// second call may return an error.
func (s *Store) Close() error { return s.store.Close() }
