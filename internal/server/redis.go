package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/logthrottle"
	"github.com/rlsidecar/rlsidecar/internal/tlsfiles"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/redis"
)

const (
	// leaseTimeout bounds borrowing ahead, and giving back what is on loan. What does not arrive in time
	// is lost: the limits stay under by it.
	leaseTimeout = time.Second
)

// Redis says which Redis keeps the buckets.
type Redis struct {
	// URL as redis.Config has it; "": buckets are kept in memory.
	URL string
	// PerSecondURL is where the buckets of limits by the second are instead, as of the reference
	// server's REDIS_PERSECOND; "": at URL. What follows is of both, but PasswordFile of URL only.
	PerSecondURL string
	KeyPrefix    string
	PasswordFile string
	// Timeout bounds each question to it.
	Timeout time.Duration
	// WaitReplicas is how many replicas must confirm a charge before it counts.
	WaitReplicas int
	// CA, Cert and Key are files, for the rediss forms; Cert and Key are read again for every new
	// connection.
	CA, Cert, Key string
	// SkipHostname takes any name in the server's certificate, which must still be signed by the CA.
	SkipHostname bool
}

// bySecond reports whether c is of a limit by the second, as the reference server has it.
func bySecond(c *backend.Charge) bool {
	l := c.Limit
	return l.Kind == algorithms.FixedWindow && !l.PhaseFromKey && algorithms.Micros(l.Period)*l.Tick == algorithms.Second
}

// UnusableRedis says that the settings of Redis cannot be used, whatever Redis answers: a file is missing, or they
// contradict each other.
type UnusableRedis struct{ Err error }

// Error implements error.
func (u UnusableRedis) Error() string { return u.Err.Error() }

// Unwrap returns what is wrong with them.
func (u UnusableRedis) Unwrap() error { return u.Err }

// openRedis opens the stores of s.
func (s *server) openRedis() ([]*redis.Store, error) {
	redis.LogTo(func(text string) { s.log.Debug("redis client", zap.String("says", text)) })
	opened, closed := s.metrics.WatchBreakers()
	return s.config.Redis.open(func(server string, open bool) {
		s.breakerChanged(server, open)
		if open {
			opened(server)
			s.log.Error("redis fails and is not asked for now; limits answer by on_backend_failure", zap.String("server", server))
		} else {
			closed(server)
			s.log.Info("redis answers again", zap.String("server", server))
		}
	}, s.storePanicked)
}

// OpenRedis makes the stores that a server with c would have. The error is of c.
func OpenRedis(c Redis) ([]*redis.Store, error) {
	redis.LogTo(func(string) {}) // what matters comes back as an error
	return c.open(nil, nil)
}

func (c Redis) open(changed func(server string, open bool), panicked func(value any)) (stores []*redis.Store, err error) {
	if c.hasTLS() && !strings.HasPrefix(c.URL, "rediss") && !strings.HasPrefix(c.PerSecondURL, "rediss") {
		return nil, errors.New("the --redis-tls flags mean nothing here, for the connection would not be encrypted: write rediss:// in --redis-url, or remove them")
	}
	conf, err := c.tls()
	if err != nil {
		return nil, err
	}
	first := c.first(conf)
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

// first is the Redis at URL.
func (c Redis) first(conf *tls.Config) redis.Config {
	return redis.Config{
		URL: c.URL, Timeout: c.Timeout, KeyPrefix: c.KeyPrefix, PasswordFile: c.PasswordFile, WaitReplicas: c.WaitReplicas, TLS: conf,
	}
}

// ledger opens that of the adjustments.
func (c Redis) ledger() (*redis.Ledger, error) {
	conf, err := c.tls()
	if err != nil {
		return nil, err
	}
	return redis.OpenLedger(c.first(conf), "adjustments")
}

// storePanicked logs a panic on a goroutine that serves many requests. Theirs has failed.
func (s *server) storePanicked(value any) {
	s.log.Error("panic while Redis was asked; its requests are answered by on_backend_failure", zap.Any("panic", value), zap.Stack("stack"))
}

// backendFailed logs why Redis could not decide, once a second at most.
func (s *server) backendFailed() func(error) {
	log := logthrottle.Log(s.log, time.Second)
	return func(err error) {
		s.redisTrouble.failed(err)
		fields := []zap.Field{zap.Error(err)}
		if isLate(err) {
			fields = append(fields, zap.Duration("--backend-timeout", s.config.Redis.Timeout), zap.String("hint", "rlsidecar doctor measures the time that Redis needs"))
		}
		log.Warn("redis could not decide; limits answer by on_backend_failure", fields...)
	}
}

// hasTLS reports whether c says how TLS is to be done.
func (c Redis) hasTLS() bool { return c.CA != "" || c.Cert != "" || c.Key != "" || c.SkipHostname }

// tls is the configuration of the files; nil if there are none.
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

// anyName makes conf verify all of a certificate but the name.
func anyName(conf *tls.Config) {
	conf.InsecureSkipVerify = true //nolint:gosec // VerifyConnection does it
	conf.VerifyConnection = func(state tls.ConnectionState) error {
		between := x509.NewCertPool()
		for _, c := range state.PeerCertificates[1:] {
			between.AddCert(c)
		}
		_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: conf.RootCAs, Intermediates: between})
		return err
	}
}
