package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

const (
	// sentinelPoll is the interval at which each Sentinel is polled for the master. Its messages about a
	// failover usually arrive earlier.
	sentinelPoll = time.Second
	// sentinelRedial is the pause before a Sentinel is dialed again.
	sentinelRedial = 100 * time.Millisecond
	// maxSentinels is the largest number of Sentinels that are watched. It includes the Sentinels that other
	// Sentinels name.
	maxSentinels = 9
	// promotionPoll is the interval at which a replica that is being promoted is polled, until the replica
	// reports that it is the master. The polling ends after promotionMost.
	promotionPoll = 10 * time.Millisecond
	promotionMost = 3 * time.Second
	// staleFor is how long after a failover Sentinels may still name the old master. They inform each other
	// only every two seconds.
	staleFor = 5 * time.Second
)

// view is what this process knows about the master. Its methods are pure: they depend only on the view, an
// event and the time.
type view struct {
	master string    // "" until a Sentinel names one
	old    string    // the previous master
	oldAt  time.Time // when it stopped being the master
	next   string    // the replica that a Sentinel promotes; "" if there is no failover
	nextAt time.Time
}

// moving reports whether a replica is being promoted. That is assumed for at most promotionMost. Charges that the old
// master accepts during a promotion are lost.
func (v view) moving(now time.Time) bool { return v.next != "" && now.Sub(v.nextAt) < promotionMost }

// named returns v after a Sentinel has answered that addr is the master. During a failover this answer is
// ignored, because then only messages count. Shortly after a failover the name of the old master is ignored,
// because some Sentinels do not know the new master yet.
func (v view) named(addr string, now time.Time) view {
	if v.moving(now) || addr == v.old && now.Sub(v.oldAt) < staleFor {
		return v
	}
	return v.switched(addr, now)
}

// replaces returns v after a message of a Sentinel about a failover that replaces master. If v has another master, it
// has missed an earlier failover or already has the new master. In any case master becomes the current one. When the
// caller applies the rest of the message, master becomes the old one, and v ignores Sentinels that still name it.
func (v view) replaces(master string, now time.Time) view { return v.switched(master, now) }

// promotes returns v after a Sentinel has reported that it promotes the replica at addr. The report is ignored if that
// server is already the master.
func (v view) promotes(addr string, now time.Time) view {
	if addr != v.master {
		v.next, v.nextAt = addr, now
	}
	return v
}

func (v view) aborted() view {
	v.next = ""
	return v
}

func (v view) switched(addr string, now time.Time) view {
	v.next = ""
	if addr != v.master {
		v.old, v.oldAt, v.master = v.master, now, addr
	}
	return v
}

// sentinels tracks the current master. It polls the Sentinels each second, and follows their messages. While
// no Sentinel answers, the last known master counts as the current one.
//
// One or two seconds pass between the moment at which a Sentinel promotes a replica and its message
// +switch-master. Charges that the old master accepts in this time are lost. So the store stops using the old
// master when the Sentinel reports that it is about to promote a replica. The store uses the replica as soon
// as the replica reports that it is the master.
type sentinels struct {
	name   string
	master goredis.Options // options of a client of a master
	own    goredis.Options // options of a client of a Sentinel
	dial   dialFunc

	moved   func() // called when the master changes
	closing context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	now     func() time.Time
	machine *Machine // nil outside of simulations

	mu      sync.Mutex
	watched []string // the addresses of the watched Sentinels; this and the following fields are guarded by mu
	view    view
	known   chan struct{} // closed as soon as a master is known
	err     error         // the error of a Sentinel that named no master, or nil
	errFrom string        // the address of that Sentinel
	closed  bool
}

// newFailoverClient makes a client of the master that l names. The client follows failovers.
func (s *Store) newFailoverClient(o *goredis.Options, dial dialFunc, l location) *goredis.Client {
	w := &sentinels{
		name: l.master, master: *o, own: *o, dial: dial,
		known: make(chan struct{}), now: s.clock.Now, machine: s.config.Machine,
	}
	w.master.Dialer, w.master.PoolSize = dialer(dial, new(atomic.Uint32)), 1
	w.own.Dialer, w.own.PoolSize, w.own.DB, w.own.CredentialsProviderContext = w.master.Dialer, 1, 0, nil
	w.own.Username, w.own.Password = l.sentinelUsername, l.sentinelPassword
	w.own.ReadTimeout, w.own.WriteTimeout = sentinelPoll/2, sentinelPoll/2
	w.closing, w.cancel = context.WithCancel(context.Background())
	w.moved = s.masterChanged
	s.sentinels = w
	o.Network, o.Addr = "tcp", l.master
	if w.machine != nil {
		client := newClient(o)
		w.simulate(client, l.hosts)
		return client
	}
	for _, addr := range l.hosts {
		w.watch(addr)
	}
	o.Dialer = dialer(func(ctx context.Context, _, _ string) (net.Conn, error) { return w.connect(ctx) }, &s.age)
	o.OnConnect = func(ctx context.Context, cn *goredis.Conn) error { return checkMaster(ctx, cn) }
	return newClient(o)
}

// checkMaster returns an error if the server reports that it is a replica, or does not answer. If the reply is an
// error, for example because the user may not run INFO, the server counts as the master.
func checkMaster(ctx context.Context, client goredis.Cmdable) error {
	info, err := client.Info(ctx, "replication").Result()
	var reply goredis.Error
	switch {
	case errors.As(err, &reply):
		return nil
	case err == nil && strings.Contains(info, "role:slave"):
		return notSent("it is a replica, and not the master any more")
	default:
		return err
	}
}

var errPromoting = notSent("its Sentinels are replacing the master")

// connect makes a connection to the current master. Until a Sentinel has named a master, connect waits for that.
func (w *sentinels) connect(ctx context.Context) (net.Conn, error) {
	select {
	case <-w.known:
	case <-ctx.Done():
		return nil, notSent("no Sentinel has named the master yet")
	case <-w.closing.Done():
		return nil, net.ErrClosed
	}
	addr, err := w.current()
	if err != nil {
		return nil, err
	}
	return w.dial(ctx, "tcp", addr)
}

// current returns the address of the master. The address is "" if no Sentinel has named the master yet. While a
// replica is being promoted, the error is errPromoting.
func (w *sentinels) current() (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.view.moving(w.now()) {
		return "", errPromoting
	}
	return w.view.master, nil
}

// change applies an event to the view, and acts on the result: it makes the connections to a former master outdated,
// and starts to poll a replica that is being promoted.
func (w *sentinels) change(event func(view) view) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.view
	w.view = event(was)
	if w.closed {
		return
	}
	if was.master == "" && w.view.master != "" {
		close(w.known)
	}
	moved := w.view.master != was.master && was.master != ""
	starts := w.view.next != was.next && w.view.next != ""
	if moved || starts {
		w.moved()
	}
	if starts {
		next := w.view.next
		w.spawn(func() { w.follow(next) })
	}
}

// follow polls a replica that is being promoted, until the replica reports that it is the master or the
// failover has ended.
func (w *sentinels) follow(addr string) {
	client := w.clientOf(addr)
	defer client.Close()
	for {
		w.mu.Lock()
		over := w.view.next != addr || !w.view.moving(w.now())
		w.mu.Unlock()
		if over {
			return
		}
		ctx, cancel := context.WithDeadline(w.closing, w.now().Add(10*promotionPoll))
		info, err := client.Info(ctx, "replication").Result()
		cancel()
		if err == nil && strings.Contains(info, "role:master") {
			w.change(func(v view) view {
				if v.next != addr {
					return v
				}
				return v.switched(addr, w.now())
			})
			return
		}
		if !w.pause(promotionPoll) {
			return
		}
	}
}

// clientOf makes a client that does not follow failovers.
func (w *sentinels) clientOf(addr string) *goredis.Client {
	o := w.master
	o.Addr = addr
	client := newClient(&o)
	if w.machine != nil {
		w.machine.connect(client, addr)
	}
	return client
}

func (w *sentinels) spawn(f func()) {
	if w.machine != nil {
		w.machine.Go(f)
		return
	}
	w.running.Go(f)
}

func (w *sentinels) pause(d time.Duration) bool {
	if w.machine != nil {
		w.machine.Pause(d)
		return w.closing.Err() == nil
	}
	select {
	case <-time.After(d):
		return true
	case <-w.closing.Done():
		return false
	}
}

func (w *sentinels) watch(addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.watched) >= maxSentinels || slices.Contains(w.watched, addr) {
		return
	}
	w.watched = append(w.watched, addr)
	w.running.Go(func() { w.listen(addr) })
}

// listen follows the Sentinel at addr. When a connection has failed, it connects again.
func (w *sentinels) listen(addr string) {
	for w.closing.Err() == nil {
		if err := w.attend(addr); err != nil {
			w.refused(err, addr)
		}
		w.pause(sentinelRedial)
	}
}

// attend polls the Sentinel at addr and receives its messages, until a connection fails. It receives them on its own
// goroutine: go-redis panics at a message of another form than it expects.
func (w *sentinels) attend(addr string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = malformedReply(p)
		}
	}()
	o := w.own
	o.Addr = addr
	client := goredis.NewSentinelClient(&o)
	client.AddHook(recovering{})
	defer client.Close()
	defer context.AfterFunc(w.closing, func() { client.Close() })()
	if err := w.query(client, addr); err != nil {
		return err
	}
	messages := client.Subscribe(w.closing, "+switch-master", "+failover-state-send-slaveof-noone", "+promoted-slave", "-failover-abort-slave-timeout")
	defer messages.Close()
	first, err := messages.ReceiveTimeout(w.closing, sentinelPoll/2)
	if _, subscribed := first.(*goredis.Subscription); err == nil && !subscribed {
		err = errors.New("redis: invalid reply to SUBSCRIBE")
	}
	if err != nil {
		return err
	}
	// Messages may have been missed until now.
	if err := errors.Join(w.query(client, addr), w.discover(client)); err != nil {
		return err
	}
	heard, next := true, time.Now().Add(sentinelPoll)
	for {
		m, err := messages.ReceiveTimeout(w.closing, max(1, time.Until(next)))
		if m, ok := m.(*goredis.Message); ok {
			w.message(m.Channel, strings.Fields(m.Payload))
		}
		if err != nil && (!isTimeout(err) || !heard || w.closing.Err() != nil) {
			return err
		}
		if heard = err == nil; !heard || time.Now().After(next) {
			next = time.Now().Add(sentinelPoll)
			if err := errors.Join(w.query(client, addr), messages.Ping(w.closing)); err != nil {
				return err
			}
		}
	}
}

// query asks a Sentinel for the master. An error means that the connection must not be used any more.
func (w *sentinels) query(c *goredis.SentinelClient, sentinel string) error {
	answer, err := c.GetMasterAddrByName(w.closing, w.name).Result()
	switch _, refused := errors.AsType[goredis.Error](err); {
	case errors.Is(err, goredis.Nil):
		w.refused(fmt.Errorf("%w: %s", errNoMaster, w.name), sentinel)
	case refused:
		w.refused(err, sentinel)
	case err != nil:
		return err
	case len(answer) != 2 || !isAddress(net.JoinHostPort(answer[0], answer[1])):
		return errors.New("redis: invalid reply: a Sentinel named a master without an address")
	default:
		w.named(net.JoinHostPort(answer[0], answer[1]))
	}
	return nil
}

// discover watches the Sentinels that another Sentinel names. An error means that the connection must not be used any
// more.
func (w *sentinels) discover(c *goredis.SentinelClient) error {
	others, err := c.Sentinels(w.closing, w.name).Result()
	if _, refused := errors.AsType[goredis.Error](err); refused {
		return nil
	}
	for _, other := range others {
		if addr := net.JoinHostPort(other["ip"], other["port"]); isAddress(addr) {
			w.watch(addr)
		}
	}
	return err
}

func (w *sentinels) named(addr string) {
	w.change(func(v view) view { return v.named(addr, w.now()) })
}

// message handles a message that a Sentinel sent to a channel. The words are:
//
//	NAME OLD-IP OLD-PORT IP PORT                           in channel +switch-master
//	slave ADDRESS IP PORT @ NAME MASTER-IP MASTER-PORT     in all other channels
func (w *sentinels) message(channel string, words []string) {
	name, addr, master := "", "", ""
	switch {
	case channel == "+switch-master" && len(words) == 5:
		name, addr, master = words[0], net.JoinHostPort(words[3], words[4]), net.JoinHostPort(words[1], words[2])
	case len(words) == 8:
		name, addr, master = words[5], net.JoinHostPort(words[2], words[3]), net.JoinHostPort(words[6], words[7])
	}
	if name != w.name || !isAddress(addr) || !isAddress(master) {
		return
	}
	w.change(func(v view) view {
		v = v.replaces(master, w.now())
		switch channel {
		case "+failover-state-send-slaveof-noone":
			return v.promotes(addr, w.now())
		case "-failover-abort-slave-timeout":
			return v.aborted()
		default: // +switch-master, +promoted-slave
			return v.switched(addr, w.now())
		}
	})
}

func (w *sentinels) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.cancel()
	w.running.Wait()
}
