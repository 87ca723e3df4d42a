package redis

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

type fault struct {
	args   []string
	config func(c *Config)
	tamper faults // what a proxy before the server does, in place of hit and repair

	hit    func(t *testing.T, s *redistest.Server, admin *goredis.Client)
	again  func(admin *goredis.Client) // called every 50 ms during the fault; may be nil
	length time.Duration
	repair func(t *testing.T, s *redistest.Server, admin *goredis.Client)

	plain bool // the server gets the script without its shebang
	// served means that requests are answered all the time. How fast depends on the machine, so the
	// deadline of the requests is long.
	served bool
	// clean means that a failed request certainly charged nothing, except for calls in flight when the
	// fault started or ended.
	clean  bool
	lost   int64         // how often the server loses its data
	within time.Duration // the longest time until normal service; 0 means the constant generous
}

func (f fault) run(t *testing.T) {
	t.Helper()
	faulty(t)
	server := redistest.Start(t, f.args...)
	admin := server.Client() // admin logs in before the fault, which may change the password
	if err := admin.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	deadline := deadline
	if f.served {
		deadline = generous
	}
	c := Config{URL: "redis://" + server.Addr, Timeout: deadline}
	var p *proxy
	if f.tamper != (faults{}) {
		p = startProxy(t, server.Addr, seed(t))
		c.URL = "redis://" + p.Addr
		f.hit = func(*testing.T, *redistest.Server, *goredis.Client) { p.do(f.tamper) }
		f.repair = func(*testing.T, *redistest.Server, *goredis.Client) { p.do(faults{}) }
	}
	if f.config != nil {
		f.config(&c)
	}
	s := open(t, c)
	if f.plain {
		s.store.(*serverSenders).node.plain.Store(true)
	}
	l := startLoadWithin(t, deadline, 4, s)
	l.normal(l.began, generous)
	time.Sleep(200 * ms)
	hit, dialed := time.Now(), int64(0)
	if p != nil {
		dialed = p.dials.Load()
	}
	f.hit(t, server, admin)
	injected := time.Now()
	for time.Since(injected) < f.length {
		time.Sleep(min(f.length, 50*ms))
		if f.again != nil {
			f.again(admin)
		}
	}
	during := l.share(injected.Add(100*ms), time.Now(), nil)
	if f.served {
		t.Logf("during the fault %.1f %% were answered", 100*during)
		if during < 0.8 { // one damaged answer fails the requests of all clients in that call; one answer in twenty is damaged
			t.Errorf("%.1f %% were answered during the fault; want at least 80 %%; failures: %s", 100*during, l.failures())
		}
	} else if most := f.most(); during > most {
		t.Errorf("%.1f %% were answered during the fault, so the fault did not occur; want at most %.0f %%", 100*during, 100*most)
	}
	if p != nil && f.served == (p.damaged.Load() == 0) {
		t.Errorf("%d answers were damaged", p.damaged.Load())
	}
	if p != nil && !f.served && p.dials.Load()-dialed > 25 {
		t.Errorf("%d dials in two and a half seconds; want at most 25", p.dials.Load()-dialed)
	}
	f.repair(t, server, admin)
	healed := time.Now()
	if f.served {
		healed = hit
	}
	within := f.within
	if within == 0 {
		within = generous
	}
	l.normal(healed, within)
	l.check(s, f.lost)
	if f.clean {
		unknown, all := int64(0), int64(0)
		for _, q := range l.requests {
			unknown += q.unknown.Load()
			all += q.attempted.Load()
		}
		if unknown > max(20, all/50) { // if the machine pauses, a few answers are late
			t.Errorf("%d requests may have been charged in a fault that refuses every call as a whole; want at most %v", unknown, max(20, all/50))
		}
	}
}

// most returns the largest share of requests that may be answered during a fault that refuses charges.
// Without the shebang, a denial writes nothing, so it is not refused.
func (f fault) most() float64 {
	if f.plain {
		return 0.6
	}
	return 0.1
}

func do(t *testing.T, admin *goredis.Client, args ...any) {
	t.Helper()
	if err := admin.Do(context.Background(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

func set(commands ...string) func(*testing.T, *redistest.Server, *goredis.Client) {
	return func(t *testing.T, _ *redistest.Server, admin *goredis.Client) {
		t.Helper()
		for _, command := range commands {
			do(t, admin, wordsOf(command)...)
		}
	}
}

func with(f func(s *redistest.Server)) func(*testing.T, *redistest.Server, *goredis.Client) {
	return func(_ *testing.T, s *redistest.Server, _ *goredis.Client) { f(s) }
}

func nothing(*testing.T, *redistest.Server, *goredis.Client) {}

func TestFaults(t *testing.T) {
	refused := func(hit, repair string) fault {
		return fault{hit: set(hit), length: time.Second, repair: set(repair), clean: true}
	}
	for name, f := range map[string]fault{
		"none": {hit: nothing, length: time.Second, repair: nothing, served: true},
		"scripts flushed": {
			hit: nothing, again: func(admin *goredis.Client) { admin.ScriptFlush(context.Background()) },
			length: 2 * time.Second, repair: nothing, served: true, clean: true,
		},
		"killed and restarted empty": {
			hit:    with((*redistest.Server).Kill),
			length: 2 * time.Second,
			repair: with(func(s *redistest.Server) { s.Restart() }),
			lost:   1,
		},
		"stopped":       {hit: with((*redistest.Server).Pause), length: 2 * time.Second, repair: with((*redistest.Server).Resume)},
		"out of memory": refused("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
		"out of memory without shebang": {
			plain: true, // servers before 7.0 do not refuse the script before its first command; they refuse its first write
			hit:   set("CONFIG SET maxmemory 1"), length: time.Second, repair: set("CONFIG SET maxmemory 0"), clean: true,
		},
		"no permission": refused("ACL SETUSER default -eval -evalsha", "ACL SETUSER default +@all"),
		"no replicas":   refused("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
		"read-only":     refused("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
		"no more clients, with connections": {
			hit: set("CONFIG SET maxclients 1"), length: time.Second, repair: set("CONFIG SET maxclients 10000"), served: true,
		},
		"no more clients, without connections": {
			hit:    set("CONFIG SET maxclients 1", "CLIENT KILL TYPE normal SKIPME yes"),
			length: time.Second, repair: set("CONFIG SET maxclients 10000"),
		},
		"connections closed after the script ran": {tamper: faults{share: 0.05, close: true}, length: 2 * time.Second, served: true},
		"connections reset after the script ran":  {tamper: faults{share: 0.05, reset: true}, length: 2 * time.Second, served: true},
		"late answers":                            {tamper: faults{share: 0.05, late: 3 * deadline}, length: 2 * time.Second, served: true},
		"a black hole":                            {tamper: faults{hole: true}, length: 2500 * ms},
	} {
		t.Run(name, f.run)
	}
}

func TestFaultBusyScript(t *testing.T) {
	fault{
		args: []string{"--busy-reply-threshold", "100"},
		hit: func(t *testing.T, s *redistest.Server, _ *goredis.Client) {
			t.Helper()
			c := goredis.NewClient(&goredis.Options{Addr: s.Addr, ReadTimeout: 20 * time.Second, MaxRetries: -1, Protocol: 2, DisableIdentity: true})
			started := make(chan struct{})
			done := make(chan struct{})
			go func() {
				defer close(done)
				close(started)
				c.Eval(context.Background(), "while true do end", nil)
			}()
			<-started
			time.Sleep(200 * ms)
			t.Cleanup(func() { c.Close(); <-done })
		},
		length: 1500 * ms,
		repair: set("SCRIPT KILL"),
	}.run(t)
}

func TestFaultPasswordChanged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("sidecar:old")
	logins := func(admin *goredis.Client) (n int) {
		_, _ = fmt.Sscan(fields(admin.Info(context.Background(), "stats").Val())["total_connections_received"], &n)
		return n
	}
	before := 0
	fault{
		args:   []string{"--user", "sidecar", "on", ">old", "~rl:*", "+@all"},
		config: func(c *Config) { c.PasswordFile = file },
		hit: func(t *testing.T, _ *redistest.Server, admin *goredis.Client) {
			t.Helper()
			do(t, admin, "ACL", "SETUSER", "sidecar", "resetpass", ">new")
			do(t, admin, "CLIENT", "KILL", "USER", "sidecar")
			before = logins(admin)
		},
		length: 2 * time.Second,
		repair: func(t *testing.T, _ *redistest.Server, admin *goredis.Client) {
			t.Helper()
			if tried := logins(admin) - before; tried == 0 || tried > 40 {
				t.Errorf("%d logins tried in two seconds; want 1 to 40", tried)
			}
			write("sidecar:new")
		},
	}.run(t)
}

func TestFaultLoading(t *testing.T) {
	fault{
		args: []string{"--enable-debug-command", "yes", "--dbfilename", "dump.rdb"},
		hit: func(t *testing.T, s *redistest.Server, admin *goredis.Client) {
			t.Helper()
			do(t, admin, "DEBUG", "POPULATE", 4000, "filler", 64)
			do(t, admin, "SAVE")
			s.Kill()
			s.Restart("--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024")
			redistest.Eventually(t, "the server loads", func() bool {
				c := goredis.NewClient(&goredis.Options{Addr: s.Addr, MaxRetries: -1, Protocol: 2, DisableIdentity: true})
				defer c.Close()
				err := c.Ping(context.Background()).Err()
				return err != nil && strings.HasPrefix(err.Error(), "LOADING")
			})
		},
		length: time.Second,
		repair: with((*redistest.Server).Wait),
		lost:   1,
	}.run(t)
}

// No caller waits longer than its deadline, even if a server accepts connections and never answers.
func TestFaultServersWithoutAnswersAtStart(t *testing.T) {
	faulty(t)
	hole, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hole.Close() })
	for _, url := range []string{"redis://%s", "redis+sentinel://%s/main", "redis+cluster://%s"} {
		t.Run(url, func(t *testing.T) {
			s := away(t, Config{URL: fmt.Sprintf(url, hole.Addr()), Timeout: deadline})
			l := startLoad(t, 4, s)
			time.Sleep(1500 * ms)
			l.stop()
			worst := time.Duration(l.slowest.Load())
			t.Logf("slowest %v; %s", worst, l.failures())
			l.checkTimes()
			if share := l.share(l.began, time.Now(), nil); share > 0 {
				t.Errorf("%.1f %% were answered without a server; want none", 100*share)
			}
			// Until the breaker opens, each of the four workers waits a few times. Afterwards one worker waits
			// for each probe.
			if slow, all := l.slowFailures(); slow > max(40, all/5) {
				t.Errorf("%d of %d requests waited for a server that never answers; want at most %v", slow, all, max(40, all/5))
			}
		})
	}
}
