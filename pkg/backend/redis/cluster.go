package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// cluster is a Store over a Redis Cluster: each group of charges goes to the master of its slot, by
// a lane of its own for each master, so that one that fails delays nobody else's.
//
// A group whose buckets live in different slots cannot be taken in one step, but by its parts
// (backend.TakeParts).
type cluster struct {
	client *goredis.ClusterClient
	keys   keys
	now    func() algorithms.Micros
	lane   func(addr string, n *node) backend.Taker
	shards shardMemory

	mu    sync.Mutex
	lanes map[string]laneTo // by address; guarded by mu

	unknown    atomic.Pointer[unknown] // nil: the layout is known, or was never asked for
	reloading  atomic.Bool
	background *backend.Background
}

// laneTo is the lane to one master. go-redis makes a new client when a node leaves and comes back.
type laneTo struct {
	client *goredis.Client
	store  backend.Taker
}

// reloadPause is how long after a reload of the cluster's layout another may follow. Without
// reloads on errors go-redis learns of a failover only after a minute.
const reloadPause = 200 * time.Millisecond

// Take implements backend.Taker.
func (c *cluster) Take(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
	if one, lane := c.single(ctx, charges); one {
		lane.Take(ctx, charges, decisions)
		c.learn(decisions)
		return
	}
	var wg sync.WaitGroup
	for len(charges) > 0 {
		n := backend.GroupLen(charges)
		group, answers := charges[:n], decisions[:n]
		if n == len(decisions) {
			c.takeGroup(ctx, group, answers)
		} else {
			wg.Go(func() { c.takeGroup(ctx, group, answers) })
		}
		charges, decisions = charges[n:], decisions[n:]
	}
	wg.Wait()
}

// single tells whether all charges belong to one slot, and who is in charge of it.
func (c *cluster) single(ctx context.Context, charges []backend.Charge) (bool, backend.Taker) {
	key, slot := c.keys.of(&charges[0])
	for i := range charges {
		if len(charges[i].Shards) > 0 {
			return false, nil
		}
		if i > 0 {
			if _, other := c.keys.of(&charges[i]); other != slot {
				return false, nil
			}
		}
	}
	return true, c.laneOf(ctx, key)
}

// takeGroup takes a group by its parts: the charges of one slot, or one sharded charge.
func (c *cluster) takeGroup(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
	parts := c.parts(charges)
	if charges[0].Once != nil && (len(parts) > 1 || len(charges[0].Shards) > 0) {
		c.claims().TakeClaimed(ctx, charges, decisions, c.takeGroup) // which no one step can remember
		return
	}
	backend.TakeParts(ctx, parts, decisions, c.background)
}

func (c *cluster) claims() claims { return claims{c.client, c.keys, c.background} }

func (c *cluster) parts(charges []backend.Charge) (parts []*backend.Part) {
	slots := map[int]*backend.Part{}
	for i := range charges {
		_, slot := c.keys.of(&charges[i])
		p := slots[slot]
		switch {
		case len(charges[i].Shards) > 0:
			p = &backend.Part{Take: c.takeSharded}
			parts = append(parts, p)
		case p == nil:
			p = &backend.Part{Take: c.takeSlot}
			parts = append(parts, p)
			slots[slot] = p
		}
		p.Add(i, charges[i])
	}
	return parts
}

// takeSharded takes one charge that has shards.
func (c *cluster) takeSharded(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
	c.takeShards(ctx, &charges[0], &decisions[0])
}

// takeSlot takes charges of one slot.
func (c *cluster) takeSlot(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
	key, _ := c.keys.of(&charges[0])
	c.laneOf(ctx, key).Take(ctx, charges, decisions)
	c.learn(decisions)
}

// laneOf is the Store for the master that has key.
func (c *cluster) laneOf(ctx context.Context, key string) backend.Taker {
	client, err := c.masterOf(ctx, key)
	if err != nil {
		return failing{err}
	}
	addr := client.Options().Addr
	c.mu.Lock()
	defer c.mu.Unlock()
	lane := c.lanes[addr]
	if lane.client != client {
		n := newNode(client, c.keys, c.now)
		n.elsewhere = func(ctx context.Context, cmd goredis.Cmder) error {
			c.reload()
			return c.client.Process(ctx, cmd)
		}
		lane = laneTo{client, c.lane(addr, n)}
		c.lanes[addr] = lane
	}
	return lane.store
}

// masterOf is the client of the master that has key. It fails only until the layout is known for the
// first time; then it is asked for by one Take at a time, each reloadPause, and the others are told
// at once. (Each Take would wait for it until its deadline.)
func (c *cluster) masterOf(ctx context.Context, key string) (*goredis.Client, error) {
	was := c.unknown.Load()
	if was != nil && (time.Since(was.at) < reloadPause || !c.unknown.CompareAndSwap(was, &unknown{time.Now(), was.err})) {
		return nil, was.err
	}
	client, err := c.client.MasterForKey(ctx, key)
	switch {
	case err != nil:
		c.unknown.Store(&unknown{time.Now(), fmt.Errorf("%w (not asked while it fails)", err)})
		c.reload() // which takes the time it needs
	case was != nil:
		c.unknown.Store(nil)
	}
	return client, err
}

// unknown is why the layout was not known when last asked for.
type unknown struct {
	at  time.Time
	err error
}

// learn has the cluster's layout looked at again where a node failed.
func (c *cluster) learn(decisions []backend.Decision) {
	if errors.Is(decisions[0].Err, backend.ErrUnavailable) {
		c.reload()
	}
}

// reload has the layout looked at again, at most once in reloadPause.
func (c *cluster) reload() {
	if !c.reloading.CompareAndSwap(false, true) {
		return
	}
	started := c.background.Do(func(ctx context.Context) {
		defer c.reloading.Store(false)
		c.client.ReloadState(ctx)
		select {
		case <-time.After(reloadPause):
		case <-c.background.Closing():
		}
	})
	if !started {
		c.reloading.Store(false)
	}
}

// failing is a Store that cannot be asked.
type failing struct{ err error }

// Take implements backend.Taker.
func (f failing) Take(_ context.Context, _ []backend.Charge, decisions []backend.Decision) {
	fail(decisions, unavailable(f.err))
}
