package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/clock"
	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// cluster is a Store over a Redis Cluster. Each group of charges goes to the master that serves its slot.
// Each master has its own senders, so a master that fails delays only its own groups.
//
// A group whose buckets are in different slots cannot be charged in one step. It is charged in parts
// (stores.Parts).
type cluster struct {
	hosts     []string // of the URL
	sendersTo func(addr string) *serverSenders
	clock     clock.Clock
	spawn     func(f func())
	below     func(n int) int
	keys      keys
	sum       uint16 // keys.sum(), computed once
	timeout   time.Duration

	router                  *stores.Router
	shards                  *shardStore
	inSlots, inShards, once stores.Route // routes of groups that need several steps: several slots, shards, an idempotency key

	layout    atomic.Pointer[layout]  // nil until it has been read
	unknown   atomic.Pointer[unknown] // the last failed attempt to read the layout; nil if the layout is known, or if no attempt was made
	reloading atomic.Bool
	open      context.Context // canceled when the Store is closed
	end       context.CancelFunc

	mu     sync.Mutex
	closed bool // guarded by mu
	work   sync.WaitGroup
}

// layout has the master of each slot.
type layout struct {
	made    time.Time
	masters []*serverSenders // each master once
	// indexes has 1 + the index of its master for each slot, and 0 for a slot without one. One pointer for each slot would
	// need 128 KiB, which does not fit into a core's nearest caches.
	indexes [slots]uint16
}

// master returns the master of a slot, or nil if there is none.
func (l *layout) master(slot int) *serverSenders {
	if i := l.indexes[slot]; i > 0 {
		return l.masters[i-1]
	}
	return nil
}

const (
	// reloadPause is the shortest time between two reloads of the cluster's layout.
	reloadPause = 200 * time.Millisecond
	// layoutAge is the age at which the layout is reloaded even if no server fails.
	layoutAge     = 10 * time.Second
	reloadTimeout = time.Second
	// nodeTimeout is how long one node is asked for the layout, before the next one is.
	nodeTimeout = 100 * time.Millisecond
	// maxRedirects is how many redirections a command without a charge follows.
	maxRedirects = 3
)

func newCluster(of *Store, hosts []string) *cluster {
	c := &cluster{
		hosts: hosts, sendersTo: of.sendersTo, clock: of.clock, spawn: func(f func()) { go f() }, below: rand.IntN,
		keys: of.keys, sum: of.keys.sum(), timeout: of.timeout,
	}
	c.open, c.end = context.WithCancel(context.Background())
	c.router = stores.NewRouter(c.route, c.reloadAfterFailure)
	c.shards = newShardStore(c.router, of.undos, of.config.Clock)
	if world := of.config.Machine; world != nil {
		c.spawn, c.below = world.Go, world.Below
		c.shards.memory.clock, c.shards.memory.random = c.clock.Now, world.Below
	}
	c.inShards.Store = c.shards
	c.inSlots.Store = stores.Parts(c.router, c.part, of.undos)
	c.once.Store = of.Claimed(c.router)
	return c
}

func (c *cluster) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.end()
	c.work.Wait()
}

func (c *cluster) background(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.work.Add(1)
		c.spawn(func() {
			defer c.work.Done()
			f()
		})
	}
	return !c.closed
}

func (c *cluster) Submit(b *backend.Batch) {
	l := c.layout.Load()
	if l == nil && len(b.Charges) > 0 {
		c.submitUnknown(b)
		return
	}
	if l != nil && c.clock.Now().Sub(l.made) > layoutAge {
		c.reload()
	}
	c.router.Submit(b)
}

func (c *cluster) route(group []backend.Charge) *stores.Route {
	if len(group) > maxGroup {
		return &tooLarge
	}
	slot := c.slotOf(&group[0])
	single := len(group[0].Shards) == 0
	for i := 1; i < len(group) && single; i++ {
		single = len(group[i].Shards) == 0 && c.slotOf(&group[i]) == slot
	}
	switch {
	case single:
		if master := c.layout.Load().master(slot); master != nil {
			return &master.route
		}
		return &notServed
	case group[0].IdempotencyKey != nil:
		return &c.once
	case len(group) == 1:
		return &c.inShards
	default:
		return &c.inSlots
	}
}

var (
	tooLarge  = stores.Route{Store: refusing{errTooLarge}}
	notServed = stores.Route{Store: refusing{unavailable(errNotServed)}}

	errNotServed = notSent("no master serves the slot of this key")
)

// part returns the number of the part to which charge i of a group belongs. The charges of one slot form a
// part, and so does each sharded charge.
func (c *cluster) part(i int, charge *backend.Charge) int {
	if len(charge.Shards) > 0 {
		return slots + i
	}
	return c.slotOf(charge)
}

func (c *cluster) slotOf(charge *backend.Charge) int { return c.keys.slotOf(charge, c.sum) }

// redirected returns the senders to the node at the address to, to which the node at the address from has redirected a
// command. It returns nil if to is no address.
func (c *cluster) redirected(from, to string) *serverSenders {
	c.reload()
	host, port, _ := net.SplitHostPort(to)
	if to = addressOf(host, port, from); !isAddress(to) {
		return nil
	}
	return c.sendersTo(to)
}

// addressOf returns the address of a node that the node at the address from calls host, which may be empty or "?": then
// the server does not know its own name.
func addressOf(host, port, from string) string {
	own, _, _ := net.SplitHostPort(from)
	if host == "" || host == "?" || isLoopback(host) && !isLoopback(own) {
		host = own
	}
	return net.JoinHostPort(host, port)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// read asks one node after the other for the layout.
func (c *cluster) read(ctx context.Context) (first error) {
	addrs := slices.Clone(c.hosts)
	if l := c.layout.Load(); l != nil {
		for _, master := range l.masters {
			addrs = append(addrs, master.server)
		}
	}
	from := c.below(len(addrs))
	for i := range addrs {
		node := c.sendersTo(addrs[(from+i)%len(addrs)])
		within, cancel := context.WithDeadline(ctx, c.clock.Now().Add(nodeTimeout))
		replies, err := ask(within, node.others, []any{"cluster", "slots"})
		cancel()
		if err == nil {
			var l *layout
			if l, err = c.layoutOf(node.server, &replies[0]); err == nil {
				c.layout.Store(l)
				c.unknown.Store(nil)
				return nil
			}
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// layoutOf reads the reply to CLUSTER SLOTS of the node at the address from. Each element has the first slot, the last
// one, and the nodes that have these slots: the host and the port of each, the master first.
func (c *cluster) layoutOf(from string, r *reply) (*layout, error) {
	l := &layout{made: c.clock.Now()}
	for i := range r.elements {
		part := &r.elements[i]
		first, err := strconv.Atoi(part.at(0))
		last, err2 := strconv.Atoi(part.at(1))
		if err != nil || err2 != nil || first < 0 || last >= slots || len(part.elements) < 3 {
			return nil, errNoLayout
		}
		addr := addressOf(part.elements[2].at(0), part.elements[2].at(1), from)
		if !isAddress(addr) {
			return nil, errNoLayout
		}
		master := c.sendersTo(addr)
		index := slices.Index(l.masters, master)
		if index < 0 {
			index = len(l.masters)
			l.masters = append(l.masters, master)
		}
		for slot := first; slot <= last; slot++ {
			l.indexes[slot] = uint16(index + 1)
		}
	}
	if len(l.masters) == 0 {
		return nil, errNoLayout
	}
	return l, nil
}

var errNoLayout = errors.New("redis: invalid reply: the node has not reported the masters of the Cluster")

// current returns the layout. It reads the layout if it is not known.
func (c *cluster) current(ctx context.Context) (*layout, error) {
	if l := c.layout.Load(); l != nil {
		return l, nil
	}
	err := c.read(ctx)
	return c.layout.Load(), err
}

// call implements Store.call.
func (c *cluster) call(ctx context.Context, name string, commands [][]any) ([]reply, error) {
	l, err := c.current(ctx)
	if err != nil {
		return nil, err
	}
	master := l.master(slotOfName(name))
	if master == nil {
		return nil, errNotServed
	}
	asking := false
	for sends := 1; ; sends++ {
		replies, err := master.ask(ctx, asking, commands)
		words := strings.Fields(fmt.Sprint(err))
		if sends > maxRedirects || !isReply(err, "MOVED ", "ASK ") || len(words) != 3 {
			return replies, err
		}
		if asking, master = words[0] == "ASK", c.redirected(master.server, words[2]); master == nil {
			return nil, err
		}
	}
}

// ask sends commands. If asking is true, the slot of their key is moving to this server.
func (w *serverSenders) ask(ctx context.Context, asking bool, commands [][]any) ([]reply, error) {
	if !asking {
		return ask(ctx, w.others, commands...)
	}
	var all [][]any
	for _, command := range commands {
		all = append(all, []any{"asking"}, command)
	}
	replies, err := ask(ctx, w.others, all...)
	for i := 1; i < len(replies); i += 2 {
		replies[i/2] = replies[i]
	}
	return replies[:len(replies)/2], err
}

type unknown struct {
	at  time.Time
	err error
}

// submitUnknown submits b before the layout has been read for the first time. After a failed attempt, only
// one batch in each reloadPause tries to read the layout, and all others fail at once. Otherwise each batch
// would wait until its deadline.
func (c *cluster) submitUnknown(b *backend.Batch) {
	was := c.unknown.Load()
	now := c.clock.Now()
	if was != nil && (now.Sub(was.at) < reloadPause || !c.unknown.CompareAndSwap(was, &unknown{now, was.err})) {
		b.Fail(unavailable(was.err))
		return
	}
	if b.Waits {
		c.readLayout(b)
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
		b.Fail(unavailable(fmt.Errorf("%w: closed", backend.ErrNotTaken)))
	}
}

func (c *cluster) readLayout(b *backend.Batch) {
	end := c.clock.Now().Add(c.timeout)
	if !b.Deadline.IsZero() {
		end = b.Deadline
	}
	ctx, cancel := context.WithDeadline(c.open, end)
	defer cancel()
	if err := c.read(ctx); err != nil {
		c.unknown.Store(&unknown{c.clock.Now(), fmt.Errorf("%w (the circuit breaker is open)", err)})
		c.reload() // a reload has more time than the batch
		b.Fail(unavailable(err))
		return
	}
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
		_ = c.read(ctx)
		c.clock.AfterFunc(reloadPause, func() { c.reloading.Store(false) })
	})
}

type refusing struct{ err error }

func (r refusing) Submit(b *backend.Batch) { b.Fail(r.err) }
