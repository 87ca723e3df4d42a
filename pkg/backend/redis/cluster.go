package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
// A group whose buckets live in different slots cannot be taken in one step: each slot's part is
// charged, and where one denies or fails, what the others charged is given back. So it is never over
// a limit, and under it only until the give-back has arrived; a sidecar that dies in between leaves
// it under until the tokens have flowed in again.
type cluster struct {
	client *goredis.ClusterClient
	keys   keys
	now    func() algorithms.Micros
	lane   func(addr string, n *node) backend.Store
	shards shardMemory

	mu    sync.Mutex
	lanes map[string]laneTo // by address; guarded by mu

	unknown   atomic.Pointer[unknown] // nil: the layout is known, or was never asked for
	reloading atomic.Bool
	background
}

// laneTo is the lane to one master. go-redis makes a new client when a node leaves and comes back.
type laneTo struct {
	client *goredis.Client
	store  backend.Store
}

// reloadPause is how long after a reload of the cluster's layout another may follow. Without
// reloads on errors go-redis learns of a failover only after a minute.
const reloadPause = 200 * time.Millisecond

// Take implements backend.Store.
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
func (c *cluster) single(ctx context.Context, charges []backend.Charge) (bool, backend.Store) {
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

// part is the charges of one group that can be taken in one step: those of one slot, or one sharded
// charge.
type part struct {
	of        []int // their numbers in the group
	charges   []backend.Charge
	decisions []backend.Decision
}

// takeGroup takes the parts of a group at once, and gives back what was taken if not all were. Parts
// that give something back themselves wait for the others: undoing them could fail.
func (c *cluster) takeGroup(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
	parts, later := c.parts(charges)
	if charges[0].Once != nil && (len(parts)+len(later) > 1 || len(charges[0].Shards) > 0) {
		c.takeClaimed(ctx, charges, decisions) // which no one step can remember
		return
	}
	c.takeParts(ctx, parts)
	all := allowed(parts)
	if !all {
		for _, p := range later {
			p.look()
		}
	}
	c.takeParts(ctx, later)
	all = all && allowed(later)
	parts = append(parts, later...)
	var failed error
	for _, p := range parts {
		for n, i := range p.of {
			decisions[i] = p.decisions[n]
			if p.decisions[n].Err != nil {
				failed = p.decisions[n].Err
			}
		}
	}
	if len(parts) > 1 && !all {
		c.giveBack(parts, decisions)
	}
	if failed != nil {
		for i := range decisions {
			decisions[i] = backend.Decision{Err: failed}
		}
	}
}

// takeParts takes parts at the same time.
func (c *cluster) takeParts(ctx context.Context, parts []*part) {
	if len(parts) == 0 {
		return
	}
	var wg sync.WaitGroup
	for _, p := range parts[1:] {
		wg.Go(func() { c.takePart(ctx, p) })
	}
	c.takePart(ctx, parts[0])
	wg.Wait()
}

func allowed(parts []*part) bool {
	for _, p := range parts {
		for i := range p.decisions {
			if !p.decisions[i].Allowed {
				return false
			}
		}
	}
	return true
}

// look makes p's charges mere looks.
func (p *part) look() {
	for i := range p.charges {
		p.charges[i].Ask.Look = true
	}
}

// parts splits a group; later are the parts in which something is given back.
func (c *cluster) parts(charges []backend.Charge) (parts, later []*part) {
	var all []*part
	slots := map[int]*part{}
	for i := range charges {
		_, slot := c.keys.of(&charges[i])
		p := slots[slot]
		if p == nil || len(charges[i].Shards) > 0 {
			p = &part{}
			all = append(all, p)
			if len(charges[i].Shards) == 0 {
				slots[slot] = p
			}
		}
		p.of = append(p.of, i)
		p.charges = append(p.charges, charges[i])
	}
	for _, p := range all {
		p.decisions = make([]backend.Decision, len(p.charges))
		if slices.ContainsFunc(p.charges, func(c backend.Charge) bool { return c.Ask.Cost < 0 }) {
			later = append(later, p)
		} else {
			parts = append(parts, p)
		}
	}
	return parts, later
}

func (c *cluster) takePart(ctx context.Context, p *part) {
	if len(p.charges[0].Shards) > 0 {
		c.takeShards(ctx, &p.charges[0], &p.decisions[0])
		return
	}
	key, _ := c.keys.of(&p.charges[0])
	c.laneOf(ctx, key).Take(ctx, p.charges, p.decisions)
	c.learn(p.decisions)
}

// giveBack undoes what parts charged. It is sent on its own time: the answer does not wait for it,
// and a caller that leaves does not stop it.
func (c *cluster) giveBack(parts []*part, decisions []backend.Decision) {
	for _, p := range parts {
		if !charged(p) {
			continue
		}
		undo := make([]backend.Charge, 0, len(p.charges))
		for i, charge := range p.charges {
			d := &p.decisions[i]
			if charge.Limit.ChargesDenied() { // it pays whatever the others say
				continue
			}
			charge.Key = append([]byte(nil), charge.Key...)
			charge.Ask = algorithms.Ask{Cost: -charge.Ask.Cost, Hash: charge.Ask.Hash, Of: d.At}
			undo = append(undo, charge)
			there := &decisions[p.of[i]]
			there.Remaining = min(there.Remaining-charge.Ask.Cost, charge.Limit.Capacity)
			there.Wait = 0
		}
		c.do(func(ctx context.Context) {
			back := &part{charges: undo, decisions: make([]backend.Decision, len(undo))}
			if len(undo) > 0 {
				c.takePart(ctx, back)
			}
		})
	}
}

// charged tells whether a part took something that can be undone.
func charged(p *part) bool {
	for i := range p.charges {
		d, ask := &p.decisions[i], &p.charges[i].Ask
		if d.Err != nil || !d.Allowed || ask.Look {
			return false
		}
	}
	return true
}

// laneOf is the Store for the master that has key.
func (c *cluster) laneOf(ctx context.Context, key string) backend.Store {
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
	started := c.do(func(ctx context.Context) {
		defer c.reloading.Store(false)
		c.client.ReloadState(ctx)
		select {
		case <-time.After(reloadPause):
		case <-c.closing:
		}
	})
	if !started {
		c.reloading.Store(false)
	}
}

// failing is a Store that cannot be asked.
type failing struct{ err error }

// Take implements backend.Store.
func (f failing) Take(_ context.Context, _ []backend.Charge, decisions []backend.Decision) {
	fail(decisions, unavailable(f.err))
}

// background runs what nobody waits for, bounded in number and time, until it is closed.
type background struct {
	timeout time.Duration
	closing chan struct{}
	room    chan struct{}
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool // guarded by mu
}

func newBackground(timeout time.Duration) background {
	return background{timeout: timeout, closing: make(chan struct{}), room: make(chan struct{}, 1024)}
}

// do runs f, unless 1,024 are running or it is closed: then it is dropped, which leaves limits
// under, not over. It reports whether it does.
func (b *background) do(f func(ctx context.Context)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	select {
	case b.room <- struct{}{}:
	default:
		return false
	}
	b.running.Go(func() {
		defer func() { <-b.room }()
		ctx, cancel := context.WithTimeout(context.Background(), b.timeout)
		defer cancel()
		f(ctx)
	})
	return true
}

// close waits for what runs.
func (b *background) close() {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		close(b.closing)
	}
	b.mu.Unlock()
	b.running.Wait()
}
