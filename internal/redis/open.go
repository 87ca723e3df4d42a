// Package redis keeps buckets in Redis: one server, a master watched by Sentinels, or a Cluster. A script
// (take.lua) decides and charges in one step, so that any number of processes can share the same limits.
//
// A call gets its answer in time or fails with ErrUnavailable. A call whose charges may have been consumed is
// never sent again.
package redis

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/rlsidecar/rlsidecar/internal/nonblock"
	"github.com/rlsidecar/rlsidecar/internal/outside"
	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Config configures a Store. Fields that pkg/backend/redis.Config has, too, are described there.
type Config struct {
	URL          string
	Timeout      time.Duration
	KeyPrefix    string
	PasswordFile string
	TLS          *tls.Config
	WaitReplicas int
	Clock        func() algorithms.Micros
	Changed      func(server string, open bool) // OnBreaker in pkg/backend/redis
	Panicked     func(value any)                // OnPanic in pkg/backend/redis

	// Outside replaces the time, the randomness and the network of the machine in a simulation. It is nil
	// otherwise.
	Outside *outside.World

	connections     int           // the largest number of connections to a server; 0 means as many as the senders need
	detachedTimeout time.Duration // for tests: replaces the constant detachedTimeout, unless 0
}

// LogTo passes the messages of go-redis to the function log. They help only in debugging. All clients of the process
// share one logger.
func LogTo(log func(text string)) { goredis.SetLogger(clientLog(log)) }

type clientLog func(text string)

func (log clientLog) Printf(_ context.Context, format string, args ...any) {
	log(fmt.Sprintf(format, args...))
}

// Store is a backend.Store in Redis.
type Store struct {
	claims
	store    backend.Store
	config   Config
	name     string // the address of the server, the name of the master, or "cluster"
	endpoint endpoint
	cluster  *cluster      // nil if this is not a Cluster
	pool     nonblock.Pool // runs calls
	lines    lines
	starter  *starter

	sentinels *sentinels // nil without Sentinels

	sendersMu       sync.Mutex
	sendersByServer map[string]*serverSenders // by the address of the server or the name of the master; guarded by sendersMu
	sendersClosed   bool                      // guarded by sendersMu
}

// Open makes a Store. It does not wait for Redis: an unreachable server makes the first call fail, not Open.
// An error means a mistake in the Config, or a password file that cannot be read.
func Open(c Config) (*Store, error) {
	if c.Timeout <= 0 {
		c.Timeout = 10 * time.Millisecond
	}
	if c.KeyPrefix == "" {
		c.KeyPrefix = "rl:"
	}
	if strings.ContainsAny(c.KeyPrefix, "{}") {
		return nil, fmt.Errorf("redis key prefix %q: braces choose cluster slots and cannot be part of it", c.KeyPrefix)
	}
	u, err := parse(c.URL)
	if err != nil {
		return nil, err
	}
	if err := c.consistent(u); err != nil {
		return nil, err
	}
	s := &Store{config: c, name: cmp.Or(u.addr, u.master, "cluster"), endpoint: newEndpoint(u), sendersByServer: map[string]*serverSenders{}}
	s.timeout, s.panicked, s.underway = c.Timeout, c.Panicked, new(atomic.Int64)
	s.clock, s.spawn, s.random = outside.System, s.pool.Go, func(p []byte) { _, _ = rand.Read(p) } // rand.Read never fails
	if c.Outside != nil {
		s.clock, s.spawn, s.random = c.Outside.Clock, c.Outside.Go, c.Outside.Random
	}
	s.undos = stores.NewUndosBy(s.clock, max(100*time.Millisecond, 4*c.Timeout))
	s.senderOf, s.starter = s.senderTo, newStarter(s.spawn)
	o := c.options(u)
	s.lines = lines{timeout: o.DialTimeout, burst: burst(c.Timeout), all: map[string]*line{}, signOfLife: map[string]func(){}}
	dial := newDialer(o)
	o.Dialer = s.lines.dialer(dial)
	k := keys{prefix: c.KeyPrefix}
	s.keys = k
	switch u.form {
	case "cluster":
		co := clusterOptions(o, u.hosts)
		client := goredis.NewClusterClient(co)
		s.client = client
		s.cluster = newCluster(client, k, c, s.sender, s.claims)
		s.store = s.cluster
	case "sentinel":
		client := s.newFailoverClient(o, dial, u)
		s.client = client
		s.store = s.sender(u.master, newNode(client, k, c.Clock))
	default:
		client := c.newClient(o)
		s.client = client
		s.store = s.sender(o.Addr, newNode(client, k, c.Clock))
	}
	return s, nil
}

// sender makes the senders to one server. server is its address, or the name of the master.
func (s *Store) sender(server string, n *node) backend.Store {
	n.replicas = s.config.replicas()
	if c := s.config.Outside; c != nil {
		n.clock, n.wall = s.clock, func() algorithms.Micros { return algorithms.Micros(c.Clock.Now().UnixMicro()) }
	}
	usual := newSender(s.config.Timeout, n.decide)
	usual.spawn, usual.clock, usual.start = s.spawn, s.clock, s.starter.add
	if s.config.Outside == nil && s.config.connections == 0 && n.replicas.count == 0 {
		usual.wire = &wire{node: n, sender: usual}
	}
	if s.config.Changed != nil {
		usual.changed = func(open bool) { s.config.Changed(server, open) }
	}
	w := &serverSenders{usual, usual}
	if timeout := cmp.Or(s.config.detachedTimeout, detachedTimeout); s.config.Timeout < timeout {
		detached := n.withTimeout(timeout)
		s.simulate(detached.client)
		w.long = newSender(timeout, detached.decide)
		w.long.spawn, w.long.clock = s.spawn, s.clock
		usual.probe, usual.probeTimeout = w.long.decide, timeout
	}
	if s.config.Panicked != nil {
		usual.panicked, w.long.panicked = s.config.Panicked, s.config.Panicked
	}
	s.lines.notify(server, w.signOfLife)
	s.sendersMu.Lock()
	defer s.sendersMu.Unlock()
	if s.sendersClosed {
		w.close()
	}
	s.sendersByServer[server] = w
	return w
}

// senderTo implements claims.senderOf.
func (s *Store) senderTo(bucket *backend.Charge) *sender {
	store := s.store
	if s.cluster != nil {
		if !s.cluster.known.Load() {
			return nil
		}
		store = s.cluster.route([]backend.Charge{*bucket}).Store
	}
	if w, ok := store.(*serverSenders); ok {
		return w.usual
	}
	return nil
}

func (c Config) replicas() replicas { return replicas{c.WaitReplicas, c.Timeout * 3 / 4} }

// Submit implements backend.Store.
func (s *Store) Submit(b *backend.Batch) { s.store.Submit(b) }

// Ping waits for a first answer from Redis (in a Cluster, from every master), at most until ctx ends.
func (s *Store) Ping(ctx context.Context) error {
	for {
		err := s.ping(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return unavailable(err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *Store) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if s.cluster == nil {
		return s.client.Ping(ctx).Err()
	}
	return s.cluster.client.ForEachMaster(ctx, func(ctx context.Context, client *goredis.Client) error {
		return client.Ping(ctx).Err()
	})
}

// UndosInFlight returns the number of calls in flight that run in the background, such as refunds.
func (s *Store) UndosInFlight() int { return s.undos.InFlight() }

// UndosDropped returns the number of background calls, such as refunds, that were never sent, because too many were in
// flight or s was closed.
func (s *Store) UndosDropped() int64 { return s.undos.Dropped() }

// Close waits for refunds in flight, fails all batches that have not been sent, and closes all connections.
func (s *Store) Close() error {
	s.undos.Close()
	if s.cluster != nil {
		s.cluster.close()
	}
	s.sendersMu.Lock()
	s.sendersClosed = true
	sendersByServer := slices.Collect(maps.Values(s.sendersByServer))
	s.sendersMu.Unlock()
	for _, w := range sendersByServer { // without the lock, because completing batches may need a sender
		w.close()
	}
	s.lines.close()
	if s.sentinels != nil {
		s.sentinels.close()
	}
	s.pool.Close()
	return s.client.Close()
}

func (c Config) consistent(l location) error {
	if c.PasswordFile == "" {
		return nil
	}
	if l.password != "" {
		return errors.New("the password of redis is given twice, in the URL and in a file; remove one")
	}
	_, _, err := credentials(c.PasswordFile)
	return err
}

// options returns the options that all forms of URLs share. With go-redis's defaults, a lost reply would be
// charged up to four times, and calls would exceed the deadline of their caller.
func (c Config) options(l location) *goredis.Options {
	o := &goredis.Options{
		Network: l.network, Addr: l.addr, DB: l.db,
		Username: l.username, Password: l.password,
		Protocol: 2, DisableIdentity: true,
		ContextTimeoutEnabled: true, // otherwise the deadline of a context would not end a call
		MaxRetries:            -1,   // no retries, because a lost reply may have been charged
		DialTimeout:           max(50*time.Millisecond, 10*c.Timeout),
		DialerRetries:         1,
		ReadTimeout:           2 * c.Timeout, // longer than the usual deadline, so that the deadline ends the call
		WriteTimeout:          2 * c.Timeout,
		PoolTimeout:           c.Timeout,
		PoolSize:              cmp.Or(c.connections, 8), // twice the number of calls that the two senders have in flight
		MinIdleConns:          4,
		PipelinePoolSize:      -1,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled, // the other modes raise timeouts to ten seconds
		},
	}
	if c.connections > 0 {
		o.MinIdleConns = 0
	}
	if c.PasswordFile != "" {
		o.CredentialsProviderContext = func(context.Context) (string, string, error) {
			username, password, err := credentials(c.PasswordFile)
			return cmp.Or(username, l.username), password, err
		}
	}
	if l.tls {
		if o.TLSConfig = c.TLS; o.TLSConfig == nil {
			o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	}
	return o
}

// credentials reads a file with "password" or "user:password".
func credentials(file string) (username, password string, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", "", fmt.Errorf("redis password file: %w; write the password, or user:password, into this file and let rlsidecar read it", err)
	}
	text := strings.TrimSpace(string(b))
	if text == "" {
		return "", "", errors.New("redis password file " + file + " is empty")
	}
	if name, word, ok := strings.Cut(text, ":"); ok {
		return name, word, nil
	}
	return "", text, nil
}

func clusterOptions(o *goredis.Options, hosts []string) *goredis.ClusterOptions {
	return &goredis.ClusterOptions{
		NewClient: newClient,
		Addrs:     hosts, Username: o.Username, Password: o.Password, CredentialsProviderContext: o.CredentialsProviderContext,
		Protocol: o.Protocol, DisableIdentity: o.DisableIdentity,
		ContextTimeoutEnabled: o.ContextTimeoutEnabled, MaxRetries: o.MaxRetries,
		MaxRedirects: 3, // MOVED and ASK are followed, because such a command has not run
		Dialer:       o.Dialer, DialTimeout: o.DialTimeout, DialerRetries: o.DialerRetries,
		ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		PoolTimeout: o.PoolTimeout, PoolSize: o.PoolSize, MinIdleConns: o.MinIdleConns,
		PipelinePoolSize: o.PipelinePoolSize, TLSConfig: o.TLSConfig,
		ClusterStateReloadInterval: 2 * time.Second, // only a fallback, because errors reload the layout at once
		MaintNotificationsConfig:   o.MaintNotificationsConfig,
	}
}
