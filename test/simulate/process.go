package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/clock"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

const (
	timeout = 10 * time.Millisecond // --backend-timeout
	margin  = 2 * time.Millisecond  // the time that the deadline leaves for the answer
)

// process is a sidecar. After a crash its code continues so that no goroutine leaks, but it has no effect:
// all its calls fail, and its answers are lost.
type process struct {
	w           *world
	name        string
	rng         *rand.Rand
	crashed     bool
	closing     bool // no more requests are sent to it
	settled     bool // no fault is left, and it had the time to read the layout of the Cluster
	pausedUntil int64

	born      int64
	ppm       int64         // how much faster than real time its clock runs
	suspended time.Duration // for how long its monotonic clock has stood still
	wallAhead time.Duration

	stores      []*redis.Store
	keeper      *adjust.Keeper // nil if limits are not adjusted
	ledger      *redis.Ledger
	keeperInUse bool
	undos       *stores.Undos // nil unless the process has two stores
	cache       *stores.CacheStore
	limiter     *limiter.Limiter
	skew        algorithms.Micros // the error of its estimate of the server's clock
	free        []*delivery

	watchers        []watcher // callbacks for messages of the Sentinels
	inboxes         [sentinelCount]inbox
	avoids          string // the server that it must not call, because the Sentinels replace it
	avoidsUntil     int64
	failoverEnded   bool
	failoverEndedAt time.Duration // by the clock of the process
}

func (w *world) start(name string) *process {
	rng := w.stream('p', len(w.started))
	p := &process{w: w, name: name, rng: rng, born: w.now, ppm: rng.Int64N(1000) - 500, wallAhead: time.Duration(rng.Int64N(int64(time.Hour)))}
	urls := []string{"redis+cluster://r0,r1,r2"}
	if w.watched != nil {
		urls = []string{"redis+sentinel://s0:26379/" + sentinelName}
	} else if w.layout == nil {
		urls = nil
		for _, s := range w.servers {
			urls = append(urls, "redis://"+s.name)
		}
	}
	for _, url := range urls {
		p.stores = append(p.stores, p.openStore(url))
	}
	w.started = append(w.started, p)
	all := backend.Store(p.stores[0])
	if len(p.stores) > 1 {
		p.undos = stores.NewUndos(p, max(100*time.Millisecond, 4*timeout))
		all = stores.Divided(p.stores[0], p.stores[1], func(c *backend.Charge) bool { return onSecondServer(c.Limit) }, p.undos)
	}
	p.cache = stores.Cache(waiting{p, all, true}, stores.CacheConfig{Clocks: p.clocks, Clock: p})
	top := stores.Deadline(p, p.cache, timeout, margin, func(v any) { w.judge.fail("panic in %s: %v", name, v) })
	p.skew = algorithms.Micros(rng.Int64N(2_000_000) - 1_000_000)
	p.limiter = limiter.New(waiting{p, top, false}, limiter.Config{
		Local: &local{process: p}, Process: uint64(len(w.started)), Repeater: stores.NewUndos(p, 4*timeout),
		IDs: reservationKeys, Now: func() algorithms.Micros { return w.servers[0].now() + p.skew },
		Deadline: func() time.Time { return p.Now().Add(timeout + margin) },
	})
	p.limiter.Swap(w.snapshot)
	if w.hasOperators {
		p.openLedger(urls[0])
	}
	return p
}

// local is the store of a process for on_backend_failure local. Most runs never use it.
type local struct {
	process *process
	store   *memory.Store // nil before the first use
}

func (l *local) Submit(b *backend.Batch) {
	if l.store == nil {
		l.store = memory.New(memory.Config{Clock: l.process.Now, Repeatable: true})
	}
	l.store.Submit(b)
}

var reservationKeys = reservation.NewKeys(func() []string { return []string{"a secret of all sidecars"} })

func onSecondServer(l *algorithms.Limit) bool {
	return l.Kind != algorithms.Concurrency && l.Period() <= algorithms.Second
}

// serverOf returns the server that has the buckets of l. With a Cluster or Sentinels it is the first one, which
// has the clock of all.
func (w *world) serverOf(l *algorithms.Limit) *server {
	if w.layout == nil && w.watched == nil && len(w.servers) > 1 && onSecondServer(l) {
		return w.servers[1]
	}
	return w.servers[0]
}

func (p *process) openStore(url string) *redis.Store {
	w, name := p.w, p.name
	store, err := redis.Open(redis.Config{
		URL: url, Timeout: timeout, WaitReplicas: w.waitReplicas,
		Panicked: func(v any) { w.judge.fail("panic in %s: %v", name, v) },
		Changed:  func(_ string, open bool) { w.breaker(p, open) },
		Machine:  p.machine(),
	})
	if err != nil {
		panic(err)
	}
	return store
}

func (p *process) machine() *redis.Machine {
	return &redis.Machine{
		Clock: p, Go: p.spawn, Below: p.rng.IntN, Pause: p.pause, Connect: p.connect, Masters: p.masters, Watch: p.watch,
		Random: func(b []byte) {
			for i := range b {
				b[i] = byte(p.rng.Uint32())
			}
		},
	}
}

// reload replaces the configuration, in the same way as the server.
func (p *process) reload(s *limiter.Snapshot) {
	p.limiter.Swap(s)
	p.cache.Clear()
}

func (p *process) monotonic() time.Duration {
	d := time.Duration(p.w.now-p.born) - p.suspended
	return time.Hour + d + d*time.Duration(p.ppm)/1_000_000
}

// real returns the real time in which the monotonic clock advances by d, rounded up.
func (p *process) real(d time.Duration) time.Duration {
	return d - d*time.Duration(p.ppm)/1_000_000 + time.Microsecond
}

func (p *process) Now() time.Time { return edge.Add(p.monotonic()) }

// clocks returns the clock for leases.
func (p *process) clocks() (monotonic, wall time.Duration) {
	m := p.monotonic()
	return m, m + p.wallAhead
}

func (p *process) AfterFunc(d time.Duration, f func()) clock.Timer {
	t := &timer{process: p, f: f}
	t.Reset(d)
	return t
}

// timer calls f when the monotonic clock of its process reaches due.
type timer struct {
	process *process
	f       func()
	due     time.Duration
	event   *event
}

func (t *timer) Reset(d time.Duration) bool {
	active := t.Stop()
	t.due = t.process.monotonic() + d
	t.set(d)
	return active
}

func (t *timer) set(d time.Duration) {
	t.event = t.process.w.after(t.process.real(d), t.process, func() {
		t.event = nil
		if early := t.due - t.process.monotonic(); early > 0 { // the clock stood still, so the time has not come
			t.set(early)
			return
		}
		t.f()
	})
}

func (t *timer) Stop() bool {
	if t.event == nil {
		return false
	}
	t.event.canceled = true
	t.event = nil
	return true
}

func (p *process) spawn(f func()) {
	p.w.after(time.Duration(p.rng.Int64N(20_000)), p, f)
}

// waiting is a Store whose Submit suspends the calling coroutine until the batch is answered, if the batch has
// Waits set. Other coroutines run meanwhile.
type waiting struct {
	process  *process
	next     backend.Store
	detached bool // only detached batches wait here; other callers wait in the outermost Store
}

func (s waiting) Submit(b *backend.Batch) {
	if !b.Waits || s.detached && !b.Detached {
		s.next.Submit(b)
		return
	}
	done, l := b.Done, s.process.w.loop
	l.wait(func(resume func()) {
		b.Done = func(*backend.Batch) { resume() }
		s.next.Submit(b)
	})
	b.Done = done
	done(b)
}

func (p *process) call(ctx context.Context, server string, commands []command) {
	if p.crashed {
		failAll(commands, refused)
		return
	}
	for i := range commands { // the caller may reuse its buffers after this call has ended, so they are copied
		commands[i].Args = copied(commands[i].Args)
	}
	end, _ := ctx.Deadline()
	p.w.wait(func(resume func()) {
		p.w.send(p, server, commands, p.real(end.Sub(p.Now())), resume)
	})
}

func copied(args []any) []any {
	own := make([]any, len(args))
	for i, a := range args {
		switch a := a.(type) {
		case string, int64, uint64:
			own[i] = args[i] // without another allocation
		case *string:
			own[i] = string([]byte(*a))
		case []byte:
			own[i] = string(a)
		case int:
			own[i] = int64(a)
		default:
			panic(fmt.Sprintf("simulate: an argument is a %T", a))
		}
	}
	return own
}

var (
	refused = error(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
	errCut  = errors.New("connection reset by peer")
)

func failAll(commands []command, err error) {
	for i := range commands {
		commands[i].Reply, commands[i].Err = nil, err
	}
}

// send sends commands to a server. It calls resume when all have replies or errors, at the latest after the
// real time d.
func (w *world) send(p *process, to string, commands []command, d time.Duration, resume func()) {
	s, link := w.node(to), w.linkOf(p)
	if w.log != nil {
		w.note("%s: calls %s: %s, within %v", p.name, s.name, commands[0].Args[0], d)
	}
	w.judge.checkMaster(p, s, commands[0].Args[0].(string))
	if d <= 0 {
		failAll(commands, context.DeadlineExceeded)
		resume()
		return
	}
	ended := false
	var deadline *event
	end := func(set func()) {
		if !ended {
			ended = true
			deadline.canceled = true
			set()
			resume()
		}
	}
	answers := make([]command, len(commands)) // a copy, because the caller reuses commands when the call has ended
	copy(answers, commands)
	deadline = w.afterPlain(d, p, func() { end(func() { failAll(commands, context.DeadlineExceeded) }) })
	there, back := link.delay(w), link.delay(w)
	if !s.up {
		w.seen(faultDown)
		w.afterPlain(there, p, func() { end(func() { failAll(commands, refused) }) })
		return
	}
	fault := link.drawFault(w)
	if fault == faultLostCall || fault == faultCut {
		return
	}
	arrive := func() {
		w.arrive(s, func() {
			if !s.up || fault == faultResetBefore {
				w.afterPlain(back, p, func() { end(func() { failAll(commands, io.EOF) }) })
				return
			}
			s.execute(answers)
			w.judge.redirected(p, answers[0].Err)
			back, epoch := back+s.waits(answers), s.epoch
			switch {
			case fault == faultLostAnswer, link.cutUntil > w.now:
			case fault == faultResetAfter:
				w.afterPlain(back, p, func() { end(func() { failAll(commands, errCut) }) })
			default:
				w.afterPlain(back, p, func() {
					end(func() {
						waited := answers[len(answers)-1].Args[0] == "wait"
						if copy(commands, answers); s.epoch != epoch || waited && s.alone { // a failover has closed the connection
							failAll(commands, io.EOF)
						}
					})
				})
			}
		})
	}
	w.afterPlain(there, nil, arrive)
}

func (w *world) linkOf(p *process) *link { return &w.links[p.name[0]-'a'] }

func (w *world) node(addr string) *server {
	for _, s := range w.servers {
		if addr == s.name+":6379" {
			return s
		}
	}
	panic("simulate: no server is at " + addr)
}

func (w *world) arrive(s *server, f func()) {
	if s.stuckUntil > w.now {
		w.afterPlain(time.Duration(s.stuckUntil-w.now)+100_000, nil, func() { w.arrive(s, f) })
		return
	}
	f()
}

// link is the network between a process and the servers, with its faults.
type link struct {
	least, most    time.Duration
	rng            *rand.Rand
	faultsPerMille int
	cutUntil       int64
	slowUntil      int64
}

func (l *link) delay(w *world) time.Duration {
	d := l.least + time.Duration(l.rng.Int64N(int64(l.most-l.least)))
	if l.slowUntil > w.now {
		w.seen(faultSlow)
		d *= 1 + time.Duration(l.rng.Int64N(20))
	}
	return d
}

// drawFault draws the fault of one call at random.
func (l *link) drawFault(w *world) fault {
	if l.cutUntil > w.now {
		w.seen(faultCut)
		return faultCut
	}
	if l.faultsPerMille == 0 || w.noMoreFaults || l.rng.IntN(1000) >= l.faultsPerMille {
		return none
	}
	f := [...]fault{faultLostCall, faultLostAnswer, faultResetBefore, faultResetAfter}[l.rng.IntN(4)]
	w.seen(f)
	return f
}

// close closes the stores of p. No call may be in flight.
func (p *process) close() {
	left := 0
	if p.undos != nil {
		left += p.undos.InFlight()
	}
	for _, s := range p.stores {
		left += s.UndosInFlight()
	}
	if left > 0 {
		p.w.judge.fail("%s: %d refunds or clean-ups have not ended", p.name, left)
		return
	}
	for _, s := range p.stores {
		s.Close()
	}
	if p.ledger != nil {
		p.ledger.Close()
	}
}
