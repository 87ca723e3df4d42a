package redis

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/outside"
)

const (
	// sentinelPoll is the interval at which a Sentinel is polled for the master. Its messages arrive
	// sooner.
	sentinelPoll = time.Second
	// maxSentinels bounds the Sentinels that are watched, including those that other Sentinels name.
	maxSentinels = 9
	// A replica that is being promoted is polled every promotionPoll, for at most promotionMost, until it
	// reports that it is the master.
	promotionPoll = 10 * time.Millisecond
	promotionMost = 3 * time.Second
	// staleFor is how long after a failover Sentinels may still name the old master. They inform each other
	// every two seconds.
	staleFor = 5 * time.Second
)

// view is what is known of the master. Its methods are functions of the view, an event and the time.
type view struct {
	master string    // "" until a Sentinel names one
	old    string    // the previous master
	oldAt  time.Time // when it stopped being the master
	next   string    // the replica that a Sentinel promotes; "" if there is no failover
	nextAt time.Time
}

// moving reports whether a replica is being promoted. Charges that the old master accepts from then on are
// lost.
func (v view) moving(now time.Time) bool { return v.next != "" && now.Sub(v.nextAt) < promotionMost }

// named returns v after a Sentinel has answered that addr is the master. It ignores the answer during a
// failover, when only messages count, and shortly after it, because some Sentinels do not know the new
// master yet.
func (v view) named(addr string, now time.Time) view {
	if v.moving(now) || addr == v.old && now.Sub(v.oldAt) < staleFor {
		return v
	}
	return v.switched(addr, now)
}

// of returns v after a Sentinel has reported that it replaces master. A view that knows no master yet, or that has missed
// the failover before, learns it from this report. Otherwise it would use it, if a Sentinel that does not know the new one
// names it next.
func (v view) of(master string, now time.Time) view { return v.switched(master, now) }

// promotes returns v after a Sentinel has reported that it promotes addr.
func (v view) promotes(addr string, now time.Time) view {
	if addr != v.master {
		v.next, v.nextAt = addr, now
	}
	return v
}

// aborted returns v after a failover has failed.
func (v view) aborted() view {
	v.next = ""
	return v
}

// switched returns v after addr has become the master.
func (v view) switched(addr string, now time.Time) view {
	v.next = ""
	if addr != v.master {
		v.old, v.oldAt, v.master = v.master, now, addr
	}
	return v
}

// sentinels tracks the current master. It polls the Sentinels each second, and follows their messages.
// While no Sentinel answers, the last master stays the master.
//
// One or two seconds pass between the moment at which a Sentinel promotes a replica and its message
// +switch-master. Charges that the old master accepts in this time are lost. So the store stops using it
// when the Sentinel reports that it is about to promote a replica, and uses the replica as soon as the
// replica reports that it is the master.
type sentinels struct {
	name    string
	options goredis.Options // options of a client of a Sentinel
	master  goredis.Options // options of a client of a master
	dial    dialFunc
	line    *line
	closing context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	now     func() time.Time
	outside *outside.World // nil: the machine

	mu      sync.Mutex
	watched []string      // addresses; this and the following fields are guarded by mu
	view    view          //
	known   chan struct{} // closed when a master is known
	why     error         // the error of a Sentinel that named no master, or nil
	whyFrom string        // the address of that Sentinel
	closed  bool
}

// newFailoverClient makes a client of the current master of l.
func (s *Store) newFailoverClient(o *goredis.Options, dial dialFunc, l location) *goredis.Client {
	w := &sentinels{name: l.master, master: *o, dial: dial, known: make(chan struct{}), now: s.clock.Now, outside: s.config.Outside}
	w.master.Dialer, w.master.PoolSize, w.master.MinIdleConns = dial, 1, 0
	w.options = w.master
	w.options.Username, w.options.Password, w.options.CredentialsProviderContext, w.options.DB = l.sentinelUsername, l.sentinelPassword, nil, 0
	w.closing, w.cancel = context.WithCancel(context.Background())
	w.line = s.lines.of(l.master, w.connect)
	s.sentinels = w
	if w.outside != nil {
		return w.simulate(o, l.hosts)
	}
	for _, addr := range l.hosts {
		w.watch(addr)
	}
	o.Network, o.Addr = "tcp", l.master
	o.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) { return w.line.connect(ctx), nil }
	o.OnConnect = func(ctx context.Context, cn *goredis.Conn) error { return checkMaster(ctx, cn) }
	return goredis.NewClient(o)
}

// checkMaster returns an error if the server reports that it is a replica. A server that does not permit the command is
// trusted.
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

// connect dials the current master.
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

// current returns the address of the master, "" before a Sentinel has named it.
func (w *sentinels) current() (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.view.moving(w.now()) {
		return "", errPromoting
	}
	return w.view.master, nil
}

// change applies an event to the view, and starts the actions that follow.
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
		w.line.leave()
	}
	if starts {
		next := w.view.next
		w.spawn(func() { w.follow(next) })
	}
}

// follow polls a replica that is being promoted, until it is the master.
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

// clientOf is a client of the server at addr alone.
func (w *sentinels) clientOf(addr string) *goredis.Client {
	o := w.master
	o.Addr = addr
	client := goredis.NewClient(&o)
	if w.outside != nil {
		client.AddHook(simulation{w.outside, addr})
	}
	return client
}

// spawn runs f concurrently.
func (w *sentinels) spawn(f func()) {
	if w.outside != nil {
		w.outside.Go(f)
		return
	}
	w.running.Go(f)
}

// pause waits for d, and reports whether w is not closed.
func (w *sentinels) pause(d time.Duration) bool {
	if w.outside != nil {
		w.outside.Pause(d)
		return w.closing.Err() == nil
	}
	select {
	case <-time.After(d):
		return true
	case <-w.closing.Done():
		return false
	}
}

// watch starts to watch a Sentinel, unless it is watched already or maxSentinels are.
func (w *sentinels) watch(addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.watched) >= maxSentinels || slices.Contains(w.watched, addr) {
		return
	}
	w.watched = append(w.watched, addr)
	w.running.Go(func() { w.listen(addr) })
}

// listen polls one Sentinel and follows its messages.
func (w *sentinels) listen(addr string) {
	o := w.options
	o.Addr = addr
	client := goredis.NewSentinelClient(&o)
	defer client.Close()
	messages := client.Subscribe(w.closing, "+switch-master", "+failover-state-send-slaveof-noone", "+promoted-slave", "-failover-abort-slave-timeout")
	defer messages.Close()
	poll := time.NewTicker(sentinelPoll)
	defer poll.Stop()
	received := messages.ChannelWithSubscriptions()
	w.ask(client, addr)
	for {
		select {
		case <-w.closing.Done():
			return
		case message := <-received:
			switch message := message.(type) {
			case *goredis.Message:
				w.message(message.Channel, strings.Fields(message.Payload))
			case *goredis.Subscription: // after a new subscription, because messages may have been missed
				w.ask(client, addr)
				w.discover(client)
			}
		case <-poll.C:
			w.ask(client, addr)
		}
	}
}

// ask requests the address of the master from the Sentinel at from.
func (w *sentinels) ask(client *goredis.SentinelClient, from string) {
	ctx, cancel := context.WithTimeout(w.closing, sentinelPoll/2)
	defer cancel()
	addr, err := client.GetMasterAddrByName(ctx, w.name).Result()
	switch {
	case err != nil:
		w.refused(err, from)
	case len(addr) == 2:
		w.named(net.JoinHostPort(addr[0], addr[1]))
	}
}

// named notes the answer of a Sentinel that the master is at addr.
func (w *sentinels) named(addr string) {
	w.change(func(v view) view { return v.named(addr, w.now()) })
}

// discover also watches the Sentinels that this one knows.
func (w *sentinels) discover(client *goredis.SentinelClient) {
	ctx, cancel := context.WithTimeout(w.closing, sentinelPoll/2)
	defer cancel()
	others, _ := client.Sentinels(ctx, w.name).Result()
	for _, other := range others {
		if other["ip"] != "" && other["port"] != "" {
			w.watch(net.JoinHostPort(other["ip"], other["port"]))
		}
	}
}

// message handles a message of a Sentinel:
//
//	+switch-master NAME OLD-IP OLD-PORT IP PORT
//	all others: slave ADDRESS IP PORT @ NAME MASTER-IP MASTER-PORT
func (w *sentinels) message(channel string, words []string) {
	name, addr, master := "", "", ""
	switch {
	case channel == "+switch-master" && len(words) == 5:
		name, addr, master = words[0], net.JoinHostPort(words[3], words[4]), net.JoinHostPort(words[1], words[2])
	case len(words) == 8:
		name, addr, master = words[5], net.JoinHostPort(words[2], words[3]), net.JoinHostPort(words[6], words[7])
	}
	if name != w.name {
		return
	}
	w.change(func(v view) view {
		v = v.of(master, w.now())
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

// close stops all goroutines of w.
func (w *sentinels) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.cancel()
	w.running.Wait()
}
