package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// cluster is a Store over a Redis Cluster. Each group of charges goes to the master that serves its slot.
// Each master has its own senders, so a master that fails delays only its own groups.
//
// A group whose buckets are in different slots cannot be charged in one step. It is charged in parts
// (stores.Parts).
type cluster struct {
	*Store

	client  *goredis.ClusterClient
	masters Masters // client, or those of a simulation

	router                  *stores.Router
	shards                  *shardStore
	inSlots, inShards, once stores.Route // routes of groups that need several steps: several slots, shards, an idempotency key

	layout    atomic.Pointer[layout]
	known     atomic.Bool           // the layout has been read at least once
	failed    atomic.Pointer[error] // why it could not be read, for reloadPause after the attempt; otherwise nil
	reloading atomic.Bool
	work      sync.WaitGroup
	beginning sync.Mutex      // held while work begins, and while end is called
	open      context.Context // canceled by end when the Store is closed; then no work begins
	end       context.CancelFunc
}

// Masters are the masters of a Cluster.
type Masters interface {
	MasterForKey(ctx context.Context, key string) (*goredis.Client, error)
	// ForEachMaster reads the layout, and then calls f with each master.
	ForEachMaster(ctx context.Context, f func(ctx context.Context, client *goredis.Client) error) error
}

// layout has the sender of each slot that was used since the last reload. A reload replaces the layout with an empty
// one. Its slots are filled one by one, with the master that go-redis names.
type layout struct {
	made    time.Time
	senders [slots]atomic.Pointer[serverSenders]
}

const (
	// reloadPause is the shortest time between two reloads of the cluster's layout. The store itself reloads after
	// errors: it calls the clients of single nodes, so the ClusterClient of go-redis does not see the errors.
	reloadPause = 200 * time.Millisecond
	// layoutAge is the age at which the layout is reloaded even if no server fails.
	layoutAge     = 10 * time.Second
	reloadTimeout = time.Second
)

func newCluster(of *Store, client *goredis.ClusterClient) *cluster {
	s := &cluster{Store: of, client: client, masters: client}
	s.open, s.end = context.WithCancel(context.Background())
	s.layout.Store(&layout{made: s.clock.Now()})
	s.router = stores.NewRouter(s.route, s.reloadAfterFailure)
	s.shards = newShardStore(s.router, s.config.Clock)
	if m := s.config.Machine; m != nil {
		s.masters = m.Masters(client)
		s.shards.memory.clock, s.shards.memory.random = s.clock.Now, m.Below
	}
	s.inShards.Store = s.shards
	s.inSlots.Store = stores.Parts(s.router, s.part, s.undos)
	s.once.Store = s.Claimed(s.router, s.undos)
	return s
}

func (c *cluster) close() {
	c.beginning.Lock()
	c.end()
	c.beginning.Unlock()
	c.work.Wait()
}

func (c *cluster) background(f func()) bool {
	c.beginning.Lock()
	defer c.beginning.Unlock()
	if c.open.Err() != nil {
		return false
	}
	c.work.Add(1)
	c.spawn(func() {
		defer c.work.Done()
		f()
	})
	return true
}

func (c *cluster) Submit(b *backend.Batch) {
	if !c.known.Load() && len(b.Charges) > 0 {
		c.submitUnknown(b)
		return
	}
	if c.clock.Now().Sub(c.layout.Load().made) > layoutAge {
		c.reload()
	}
	c.router.Submit(b)
}

func (c *cluster) route(group []backend.Charge) *stores.Route {
	if len(group) > maxGroup {
		return &tooLarge
	}
	slot := c.keys.slot(&group[0])
	single := len(group[0].Shards) == 0
	for i := 1; i < len(group) && single; i++ {
		single = len(group[i].Shards) == 0 && c.keys.slot(&group[i]) == slot
	}
	switch {
	case single:
		if sender := c.layout.Load().senders[slot].Load(); sender != nil {
			return &sender.route
		}
		return c.findSender(slot, &group[0])
	case group[0].IdempotencyKey != nil:
		return &c.once
	case len(group) == 1:
		return &c.inShards
	default:
		return &c.inSlots
	}
}

var tooLarge = stores.Route{Store: refusing{errTooLarge}}

// part returns the number of the part to which charge i of a group belongs. The charges of one slot form a
// part, and so does each sharded charge.
func (c *cluster) part(i int, charge *backend.Charge) int {
	if len(charge.Shards) > 0 {
		return slots + i
	}
	return c.keys.slot(charge)
}

// findSender returns the sender to the master of slot, and stores it in the layout. If the master cannot be found,
// it returns a Store that refuses all groups. charge is any charge whose bucket is in slot.
func (c *cluster) findSender(slot int, charge *backend.Charge) *stores.Route {
	l := c.layout.Load() // loaded first: if a reload replaces the layout meanwhile, an outdated answer must not get into the new one
	client, err := c.masters.MasterForKey(c.open, c.keys.name(charge))
	if err != nil {
		return &stores.Route{Store: refusing{unavailable(err)}}
	}
	sender := c.sender(client.Options().Addr)
	l.senders[slot].Store(sender)
	return &sender.route
}

// redirected returns the node at the address to, to which the node at the address from has redirected a command. It is
// nil if to is no address.
func (c *cluster) redirected(from, to string) *node {
	c.reload()
	host, port, _ := net.SplitHostPort(to)
	if host == "" { // the server does not know its own name
		host, _, _ = net.SplitHostPort(from)
	}
	if to = net.JoinHostPort(host, port); !isAddress(to) {
		return nil
	}
	return c.sender(to).node
}

// submitUnknown submits b before the layout has been read for the first time. For reloadPause after a failed attempt to read
// it, all batches fail at once. Otherwise each batch would wait until its deadline.
func (c *cluster) submitUnknown(b *backend.Batch) {
	if failed := c.failed.Load(); failed != nil {
		b.Fail(unavailable(*failed))
		return
	}
	source := b.Source
	started := c.background(func() {
		c.readLayout(b)
		if source != nil && source.Flush != nil {
			source.Flush()
		}
	})
	if !started {
		b.Fail(errClosed)
	}
}

func (c *cluster) readLayout(b *backend.Batch) {
	end := c.clock.Now().Add(c.config.Timeout)
	if !b.Deadline.IsZero() {
		end = b.Deadline
	}
	ctx, cancel := context.WithDeadline(c.open, end)
	defer cancel()
	if _, err := c.masters.MasterForKey(ctx, c.keys.name(&b.Charges[0])); err != nil {
		repeated := fmt.Errorf("%w (the circuit breaker is open)", err)
		c.failed.Store(&repeated)
		c.clock.AfterFunc(reloadPause, func() { c.failed.Store(nil) })
		c.reload() // a reload has more time than the batch
		b.Fail(unavailable(err))
		return
	}
	c.known.Store(true)
	c.Submit(b)
}

// reloadAfterFailure is called with a batch that one sender has answered. It reloads the layout if the first group
// failed with ErrUnavailable.
func (c *cluster) reloadAfterFailure(b *backend.Batch) {
	if errors.Is(b.Decisions[0].Err, backend.ErrUnavailable) {
		c.reload()
	}
}

// reload reads the layout again in the background, at most once in each reloadPause.
func (c *cluster) reload() {
	if !c.reloading.CompareAndSwap(false, true) {
		return
	}
	c.background(func() {
		ctx, cancel := context.WithDeadline(c.open, c.clock.Now().Add(reloadTimeout))
		defer cancel()
		// ReloadState returns before the layout has been read; ForEachMaster returns afterwards.
		if c.masters.ForEachMaster(ctx, func(context.Context, *goredis.Client) error { return nil }) == nil {
			c.known.Store(true) // needed if every batch had too little time to read the layout itself
		}
		c.layout.Store(&layout{made: c.clock.Now()})
		c.clock.AfterFunc(reloadPause, func() { c.reloading.Store(false) })
	})
}

type refusing struct{ err error }

func (r refusing) Submit(b *backend.Batch) { b.Fail(r.err) }
