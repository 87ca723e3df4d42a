package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/redis"
)

// Redis says which Redis keeps the buckets.
type Redis struct {
	// URL as redis.Config has it; "": buckets are kept in memory.
	URL          string
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

const (
	// answerMargin is the time kept of a caller's deadline to give the answer in: a late one opens
	// Envoy's gate.
	answerMargin = 2 * time.Millisecond
	// firstAnswer is how long readiness waits for Redis to answer once: a cold connection must not
	// deny everybody. It never depends on Redis again.
	firstAnswer = 3 * time.Second
)

// stack is the stores, from what the limiter asks down to the wire.
type stack struct {
	top    backend.Store
	memory *memory.Store        // all buckets; with Redis those that stand in for it
	denied *backend.DeniedStore // nil: in memory
	redis  *redis.Store         // nil: in memory
}

// newStack builds the stores. A charge meets them in the order of the lines below, top to bottom;
// each must not care about those above it.
func (s *server) newStack() (stack, error) {
	c := s.config.Redis
	st := stack{memory: memory.New(memory.Config{MaxKeys: s.config.MemoryMaxKeys})}
	s.metrics.WatchMemory(st.memory.Stats)
	if c.URL == "" {
		st.top = st.memory
		return st, nil
	}
	redis.LogTo(func(text string) { s.log.Debug("redis client", zap.String("says", text)) })
	opened, closed := s.metrics.WatchBreakers()
	var err error
	if st.redis, err = c.open(func(server string, open bool) {
		if open {
			opened(server)
			s.log.Error("redis fails and is not asked for now; limits answer by on_backend_failure", zap.String("server", server))
		} else {
			closed(server)
			s.log.Info("redis answers again", zap.String("server", server))
		}
	}); err != nil {
		return st, err
	}
	st.denied = backend.Denied(
		s.metrics.Backend(st.redis, s.backendFailed()), // what Redis costs, and how often it fails
		backend.DeniedConfig{})                         // the cheapest answer is a remembered no
	// Outermost, so that whatever happens below, the answer is in time.
	st.top = backend.Deadline(st.denied, c.Timeout, answerMargin)
	return st, nil
}

// OpenRedis makes the store that a server with c would have. The error is of c.
func OpenRedis(c Redis) (*redis.Store, error) {
	redis.LogTo(func(string) {}) // what matters comes back as an error
	return c.open(nil)
}

func (c Redis) open(changed func(server string, open bool)) (*redis.Store, error) {
	conf, err := c.tls()
	if err != nil {
		return nil, err
	}
	return redis.Open(redis.Config{
		URL: c.URL, Timeout: c.Timeout, KeyPrefix: c.KeyPrefix, PasswordFile: c.PasswordFile,
		WaitReplicas: c.WaitReplicas, TLS: conf, Changed: changed,
	})
}

// backendFailed logs why Redis could not decide, once a second at most.
func (s *server) backendFailed() func(error) {
	log := s.log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, time.Second, 1, 0)
	}))
	return func(err error) {
		log.Warn("redis could not decide; limits answer by on_backend_failure", zap.Error(err))
	}
}

// swap makes snapshot the configuration in use.
func (s *server) swap(snapshot *limiter.Snapshot, limits []string) {
	s.stack.memory.SetOwners(limits)
	s.limiter.Swap(snapshot)
	if s.stack.denied != nil {
		s.stack.denied.Forget() // a higher limit counts at once
	}
}

// waitForBackend waits for Redis to answer once, but not for long.
func (s *server) waitForBackend(ctx context.Context) {
	if s.stack.redis == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	if err := s.stack.redis.Ping(ctx); err != nil {
		s.log.Error("redis does not answer; starting all the same: limits answer by on_backend_failure until it does", zap.Error(err))
		return
	}
	for _, f := range s.stack.redis.Examine(ctx) {
		if f.Severity != redis.Fine {
			s.log.Warn("redis", zap.String("server", f.Server), zap.String("check", f.Check), zap.String("finding", f.Text))
		}
		s.metrics.Examined(f.Check, f.Severity == redis.Fine)
	}
}

// tls is the configuration of the files; nil if there are none.
func (c Redis) tls() (*tls.Config, error) {
	if c.CA == "" && c.Cert == "" && c.Key == "" && !c.SkipHostname {
		return nil, nil
	}
	if (c.Cert == "") != (c.Key == "") {
		return nil, errors.New("a client certificate for redis needs both --redis-tls-cert and --redis-tls-key")
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("CA of redis: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA of redis: %s holds no certificate", c.CA)
		}
	}
	if c.SkipHostname {
		anyName(conf)
	}
	if c.Cert != "" {
		if _, err := tls.LoadX509KeyPair(c.Cert, c.Key); err != nil {
			return nil, fmt.Errorf("client certificate for redis: %w", err)
		}
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
			return &pair, err
		}
	}
	return conf, nil
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
