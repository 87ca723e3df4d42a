package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/logthrottle"
	"github.com/rlsidecar/rlsidecar/internal/tlsfiles"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// leaseTimeout is how long calls that renew or return leases may wait to be sent. If a return is not sent in time, its
// units are lost, so the limits admit less.
const leaseTimeout = time.Second

// Redis configures the Redis that keeps the buckets. Without a URL, they are in memory. All fields apply to the second
// Redis, too, except PasswordFile. Units stay consumed if too few replicas confirm a charge.
type Redis struct {
	URL          string        `name:"redis-url" setting:"flag" placeholder:"URL" help:"Keep buckets in Redis: redis://[user:pass@]host:port/db, rediss://, unix:///path, redis+sentinel://h1:p,h2:p/master or redis+cluster://h1:p,h2:p."`
	PerSecondURL string        `name:"redis-per-second-url" setting:"flag" placeholder:"URL" help:"Keep the buckets of limits per second in this second Redis, as the reference server does with REDIS_PERSECOND."`
	Timeout      time.Duration `name:"backend-timeout" setting:"flag" default:"10ms" help:"Deadline of a decision by Redis. After it, on_backend_failure decides (${default})."`
	KeyPrefix    string        `name:"redis-key-prefix" setting:"flag" default:"rl:" placeholder:"TEXT" help:"Prefix of all keys in Redis (${default})."`
	PasswordFile string        `name:"redis-password-file" setting:"flag" placeholder:"FILE" help:"File with password or user:password. Read again for every connection."`
	WaitReplicas int           `name:"redis-wait-replicas" setting:"flag" placeholder:"N" help:"Number of replicas that must confirm a charge. If fewer confirm it in time, on_backend_failure decides. With the number of all replicas, a failover loses no charge (0)."`
	CA           string        `name:"redis-tls-ca" setting:"flag" placeholder:"FILE" help:"CA that signed the certificate of Redis, for rediss://."`
	Cert         string        `name:"redis-tls-cert" setting:"flag" placeholder:"FILE" help:"Client certificate. Read again for every connection."`
	Key          string        `name:"redis-tls-key" setting:"flag" placeholder:"FILE" help:"Private key of the client certificate."`
	SkipHostname bool          `name:"redis-tls-skip-hostname" setting:"flag" help:"Accept any host name in the certificate of Redis. It must still be signed by the CA."`
}

// bySecond reports whether the limit of c is a limit per second, as the reference server defines it.
func bySecond(c *backend.Charge) bool { return limiter.PerSecond(c.Limit) }

// UnusableRedis is a mistake in the settings of Redis that retrying cannot correct: a file is missing, or
// settings contradict each other.
type UnusableRedis struct{ Err error }

func (u UnusableRedis) Error() string { return u.Err.Error() }

func (u UnusableRedis) Unwrap() error { return u.Err }

func (s *server) openRedis() ([]*redis.Store, error) {
	redis.LogTo(func(text string) { s.log.Debug("redis client", zap.String("message", text)) })
	opened, closed := s.metrics.WatchBreakers()
	return s.config.Redis.open(func(server string, open bool) {
		s.breakerChanged(server, open)
		if open {
			opened(server)
			s.log.Error("redis fails, and gets no calls for now (circuit breaker); requests are answered by on_backend_failure; run rlsidecar doctor to find the cause", zap.String("server", server))
		} else {
			closed(server)
			s.log.Info("redis answers again", zap.String("server", server))
		}
	}, s.storePanicked)
}

// OpenRedis returns the stores that a server with the settings c would use. It returns an error if the
// settings contain a mistake.
func OpenRedis(c Redis) ([]*redis.Store, error) {
	redis.LogTo(func(string) {}) // the calls return the errors that matter
	return c.open(nil, nil)
}

func (c Redis) open(changed func(server string, open bool), panicked func(value any)) (stores []*redis.Store, err error) {
	if c.hasTLS() && !strings.HasPrefix(c.URL, "rediss") && !strings.HasPrefix(c.PerSecondURL, "rediss") {
		return nil, errors.New("the --redis-tls flags have no effect, because the connection is not encrypted; write rediss:// in --redis-url, or remove them")
	}
	conf, err := c.tls()
	if err != nil {
		return nil, err
	}
	first := c.mainConfig(conf)
	first.Changed, first.Panicked = changed, panicked
	configs := []redis.Config{first}
	if c.PerSecondURL != "" {
		second := first
		second.URL, second.PasswordFile = c.PerSecondURL, ""
		configs = append(configs, second)
	}
	for i, conf := range configs {
		store, err := redis.Open(conf)
		if err != nil {
			if i > 0 {
				err = fmt.Errorf("limits by the second: %w", err)
			}
			for _, s := range stores {
				s.Close()
			}
			return nil, err
		}
		stores = append(stores, store)
	}
	return stores, nil
}

func (c Redis) mainConfig(conf *tls.Config) redis.Config {
	return redis.Config{
		URL: c.URL, Timeout: c.Timeout, KeyPrefix: c.KeyPrefix, PasswordFile: c.PasswordFile, WaitReplicas: c.WaitReplicas, TLS: conf,
	}
}

func (c Redis) ledger() (*redis.Ledger, error) {
	conf, err := c.tls()
	if err != nil {
		return nil, err
	}
	return redis.OpenLedger(c.mainConfig(conf), "adjustments")
}

// storePanicked logs a panic on a goroutine that serves many requests. Those requests have failed.
func (s *server) storePanicked(value any) {
	s.log.Error("panic during a call to Redis; its requests are answered by on_backend_failure", zap.Any("panic", value), zap.Stack("stack"))
}

// backendFailed returns a function that counts a failure of Redis, and logs why Redis could not decide. The function
// logs at most once a second.
func (s *server) backendFailed() func(error) {
	log := logthrottle.Log(s.log, time.Second)
	return func(err error) {
		s.redisFailures.failed(err)
		fields := []zap.Field{zap.Error(err)}
		if isLate(err) {
			fields = append(fields, zap.Duration("--backend-timeout", s.config.Redis.Timeout), zap.String("hint", "rlsidecar doctor measures the time that Redis needs"))
		}
		log.Warn("redis could not decide; requests are answered by on_backend_failure; run rlsidecar doctor to find the cause", fields...)
	}
}

func (c Redis) hasTLS() bool { return c.CA != "" || c.Cert != "" || c.Key != "" || c.SkipHostname }

func (c Redis) tls() (*tls.Config, error) {
	if !c.hasTLS() {
		return nil, nil
	}
	if (c.Cert == "") != (c.Key == "") {
		return nil, errors.New("a client certificate for redis needs both --redis-tls-cert and --redis-tls-key")
	}
	conf, err := tlsfiles.Client("redis", c.CA, c.Cert, c.Key)
	if err == nil && c.SkipHostname {
		anyName(conf)
	}
	return conf, err
}

// anyName changes conf to verify everything in a certificate except the name.
func anyName(conf *tls.Config) {
	conf.InsecureSkipVerify = true //nolint:gosec // VerifyConnection verifies the certificate
	conf.VerifyConnection = func(state tls.ConnectionState) error {
		between := x509.NewCertPool()
		for _, c := range state.PeerCertificates[1:] {
			between.AddCert(c)
		}
		_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: conf.RootCAs, Intermediates: between})
		return err
	}
}
