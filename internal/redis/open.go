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

	"github.com/rlsidecar/rlsidecar/internal/clock"
	"github.com/rlsidecar/rlsidecar/internal/nonblock"
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

	// Machine replaces the time, the randomness and the network of the machine in a simulation. It is nil
	// otherwise.
	Machine *Machine

	connections     int           // the largest number of connections to a server if the Store decides no charges, and 0 otherwise
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
	config    Config
	location  location
	name      string // the address of the server, the name of the master, or "cluster"
	keys      keys
	clock     clock.Clock
	spawn     func(f func())
	random    func(p []byte)
	pool      nonblock.Pool           // runs calls
	client    goredis.UniversalClient // makes the calls that charge nothing
	options   *goredis.Options        // of the connections
	store     backend.Store           // cluster, or the senders to the server
	cluster   *cluster                // nil if this is not a Cluster
	sentinels *sentinels              // nil without Sentinels
	age       atomic.Uint32           // changes when another server becomes the master
	undos     *stores.Undos
	underway  atomic.Int64 // the number of groups that are being charged with a claim

	mu      sync.Mutex
	senders map[string]*serverSenders // by the address of the server or the name of the master; guarded by mu
	closed  bool                      // guarded by mu
}

// Open makes a Store. It does not wait for Redis: an unreachable server makes the first call fail, not Open.
// An error means a mistake in the Config, or a password file that cannot be read.
func Open(c Config) (*Store, error) {
	c.Timeout = cmp.Or(max(0, c.Timeout), 10*time.Millisecond)
	c.KeyPrefix = cmp.Or(c.KeyPrefix, "rl:")
	if c.Panicked == nil {
		c.Panicked = func(any) {}
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
	s := &Store{
		config: c, location: u, name: cmp.Or(u.addr, u.master, "cluster"), keys: newKeys(c.KeyPrefix), clock: clock.System,
		random: func(p []byte) { _, _ = rand.Read(p) }, senders: map[string]*serverSenders{}, // rand.Read never fails
	}
	s.spawn = s.pool.Go
	if c.Machine != nil {
		s.clock, s.spawn, s.random = c.Machine.Clock, c.Machine.Go, c.Machine.Random
	}
	s.undos = stores.NewUndos(s.clock, max(100*time.Millisecond, 4*c.Timeout))
	universal := c.options(u)
	o := universal.Simple()
	s.options = o
	dial := newDialer(o)
	o.Dialer = dialer(dial, &s.age)
	switch u.form {
	case "cluster":
		universal.Dialer = o.Dialer
		co := universal.Cluster()
		co.NewClient = newClient
		co.ClusterStateReloadInterval = 2 * time.Second // only a fallback, because errors reload the layout at once
		client := goredis.NewClusterClient(co)
		s.client, s.cluster = client, newCluster(s, client)
		s.store = s.cluster
	case "sentinel":
		s.client = s.newFailoverClient(o, dial, u)
		s.store = s.sender(u.master)
	default:
		client := newClient(o)
		if c.Machine != nil {
			c.Machine.connect(client, o.Addr)
		}
		s.client = client
		s.store = s.sender(o.Addr)
	}
	return s, nil
}

// sender returns the senders to one server, and makes them if there are none. server is its address, or the name of the
// master.
func (s *Store) sender(server string) *serverSenders {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.senders[server]
	if w != nil {
		return w
	}
	w = &serverSenders{}
	w.route.Store = w
	s.senders[server] = w
	o := *s.options
	if s.cluster != nil {
		o.Addr = server
	}
	make := func(timeout time.Duration) *sender {
		n := s.node(&o, w.signOfLife)
		n.now = s.config.Clock
		if s.cluster != nil {
			n.at = func(to string) *node { return s.cluster.redirected(server, to) }
		}
		if real, ok := n.wire.(*wire); ok {
			w.wires = append(w.wires, real)
		}
		l := newSender(timeout, n.start)
		l.spawn, l.clock, l.panicked, l.end, l.lead = s.spawn, s.clock, n.panicked, n.wire.close, n.wire.lead
		w.node = n
		return l
	}
	if timeout := cmp.Or(s.config.detachedTimeout, detachedTimeout); s.config.Timeout < timeout {
		w.long = make(timeout)
	}
	w.usual = make(s.config.Timeout)
	if s.config.Changed != nil {
		w.usual.changed = func(open bool) { s.config.Changed(server, open) }
	}
	if w.long == nil {
		w.long = w.usual
	}
	w.usual.probeTimeout = w.long.timeout
	if n := len(w.wires); n > 0 && s.config.connections == 0 {
		w.wires[n-1].warm()
	}
	if s.closed {
		w.close()
	}
	return w
}

// masterChanged makes all connections outdated.
func (s *Store) masterChanged() {
	s.age.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.senders {
		w.renew()
	}
}

// node makes a node with connections of its own, which its user must close.
func (s *Store) node(o *goredis.Options, alive func()) *node {
	n := newNode(nil, s.keys, nil)
	n.replicas = replicas{s.config.WaitReplicas, s.config.Timeout * 3 / 4}
	n.panicked = s.config.Panicked
	if machine := s.config.Machine; machine != nil {
		n.clock, n.wall = s.clock, func() algorithms.Micros { return algorithms.Micros(s.clock.Now().UnixMicro()) }
		n.wire = s.simulatedWire(o)
	} else {
		n.wire = newWire(o, alive)
	}
	return n
}

// senderTo returns the sender to the server of a bucket, or nil if the server is unknown. Its circuit breaker also applies to
// claims.
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
	_, err := eachMaster(ctx, s, func(ctx context.Context, _ string, client *goredis.Client) ([]Finding, error) {
		return nil, client.Ping(ctx).Err()
	})
	return err
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
	s.mu.Lock()
	s.closed = true
	senders := slices.Collect(maps.Values(s.senders))
	s.mu.Unlock()
	for _, w := range senders { // without the lock, because completing batches may need a sender
		w.close()
	}
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
func (c Config) options(l location) *goredis.UniversalOptions {
	o := &goredis.UniversalOptions{
		Addrs: l.hosts, DB: l.db,
		Username: l.username, Password: l.password,
		Protocol: 2, DisableIdentity: true,
		ContextTimeoutEnabled: true, // otherwise the deadline of a context would not end a call
		MaxRetries:            -1,   // no retries, because a lost reply may have been charged
		MaxRedirects:          3,    // MOVED and ASK are followed, because such a command has not run
		DialTimeout:           max(50*time.Millisecond, 10*c.Timeout),
		DialerRetries:         1,
		ReadTimeout:           2 * c.Timeout, // longer than the usual deadline, so that the deadline ends the call
		WriteTimeout:          2 * c.Timeout,
		PoolTimeout:           c.Timeout,
		PoolSize:              cmp.Or(c.connections, 8), // of calls that charge nothing, such as claims of idempotency keys
		PipelinePoolSize:      -1,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled, // the other modes raise timeouts to ten seconds
		},
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
