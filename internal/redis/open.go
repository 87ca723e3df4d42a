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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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

	detachedTimeout time.Duration // for tests: replaces the constant detachedTimeout, unless 0
}

// Store is a backend.Store in Redis.
type Store struct {
	claims
	store    backend.Store
	config   Config
	name     string // the address of the server, the name of the master, or "cluster"
	endpoint endpoint
	access   access
	cluster  *cluster      // nil if this is not a Cluster
	pool     nonblock.Pool // runs calls
	age      atomic.Uint32 // changes when another server becomes the master
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
	s.clock, s.spawn, s.random = clock.System, s.pool.Go, func(p []byte) { _, _ = rand.Read(p) } // rand.Read never fails
	if c.Machine != nil {
		s.clock, s.spawn, s.random = c.Machine.Clock, c.Machine.Go, c.Machine.Random
	}
	s.undos = stores.NewUndosBy(s.clock, max(100*time.Millisecond, 4*c.Timeout))
	s.senderOf, s.starter = s.senderTo, newStarter(s.spawn)
	s.access = c.access(u)
	s.access.age = &s.age
	s.keys, s.claims.call = keys{prefix: c.KeyPrefix}, s.call
	switch u.form {
	case "cluster":
		s.cluster = newCluster(s, u.hosts)
		s.store = s.cluster
		return s, nil
	case "sentinel":
		s.sentinels = s.watchSentinels(s.access, u)
		s.access.sentinels = s.sentinels
	}
	only := s.sendersTo(s.name)
	if n := len(only.wires); n > 0 {
		only.wires[n-1].warm()
	}
	s.store = only
	return s, nil
}

// sendersTo returns the senders to one server. server is its address, or the name of the master.
func (s *Store) sendersTo(server string) *serverSenders {
	s.sendersMu.Lock()
	defer s.sendersMu.Unlock()
	if w := s.sendersByServer[server]; w != nil {
		return w
	}
	w := &serverSenders{server: server}
	make := func(timeout time.Duration) *sender {
		n := s.node(server, w.signOfLife)
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
		w.others = w.node.wire
	}
	w.usual = make(s.config.Timeout)
	w.usual.start = s.starter.add
	if s.config.Changed != nil {
		w.usual.changed = func(open bool) { s.config.Changed(server, open) }
	}
	if w.long == nil {
		w.long, w.others = w.usual, w.node.wire
	}
	w.usual.probeTimeout = w.long.timeout
	w.route.Store = w
	if s.sendersClosed {
		w.close()
	}
	s.sendersByServer[server] = w
	return w
}

// masterChanged makes all connections outdated.
func (s *Store) masterChanged() {
	s.age.Add(1)
	s.sendersMu.Lock()
	defer s.sendersMu.Unlock()
	for _, w := range s.sendersByServer {
		w.renew()
	}
}

// node makes a node with a connection of its own, which its user must close.
func (s *Store) node(server string, alive func()) *node {
	a := s.access
	if s.cluster != nil {
		a.addr = server
	}
	n := newNode(s.transportTo(a, alive), s.keys, s.config.Clock)
	n.replicas = replicas{s.config.WaitReplicas, s.config.Timeout * 3 / 4}
	if s.config.Panicked != nil {
		n.panicked = s.config.Panicked
	}
	if s.config.Machine != nil {
		n.clock, n.wall = s.clock, func() algorithms.Micros { return algorithms.Micros(s.clock.Now().UnixMicro()) }
	}
	if s.cluster != nil {
		n.at = func(addr string) *node {
			if to := s.cluster.redirected(server, addr); to != nil {
				return to.node
			}
			return nil
		}
	}
	return n
}

// senderTo implements claims.senderOf.
func (s *Store) senderTo(bucket *backend.Charge) *sender {
	store := s.store
	if s.cluster != nil {
		if s.cluster.layout.Load() == nil {
			return nil
		}
		store = s.cluster.route([]backend.Charge{*bucket}).Store
	}
	if w, ok := store.(*serverSenders); ok {
		return w.usual
	}
	return nil
}

// call sends commands that all have the key name, and charge nothing, to the server that has the key. The error may be an
// error reply. In a Cluster it follows redirections; then it may send commands that have run again.
func (s *Store) call(ctx context.Context, name string, commands ...[]any) ([]reply, error) {
	if s.cluster != nil {
		return s.cluster.call(ctx, name, commands)
	}
	return ask(ctx, s.store.(*serverSenders).others, commands...)
}

// ask sends commands, and returns the replies. The error may be an error reply.
func ask(ctx context.Context, to transport, commands ...[]any) ([]reply, error) {
	replies, err := to.call(ctx, commands...)
	return replies, cmp.Or(err, firstError(replies))
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
	_, err := eachMaster(ctx, s, func(ctx context.Context, to *serverSenders) ([]Finding, error) {
		_, err := ask(ctx, to.others, []any{"ping"})
		return nil, err
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
	s.sendersMu.Lock()
	s.sendersClosed = true
	sendersByServer := slices.Collect(maps.Values(s.sendersByServer))
	s.sendersMu.Unlock()
	for _, w := range sendersByServer { // without the lock, because completing batches may need a sender
		w.close()
	}
	if s.sentinels != nil {
		s.sentinels.close()
	}
	s.pool.Close()
	return nil
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

// access returns the access to the servers of l.
func (c Config) access(l location) access {
	a := access{
		network: l.network, addr: l.addr, db: l.db, username: l.username, password: l.password, passwordFile: c.PasswordFile,
		timeout: max(50*time.Millisecond, 10*c.Timeout),
	}
	if l.tls {
		if a.tls = c.TLS; a.tls == nil {
			a.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	}
	return a
}
