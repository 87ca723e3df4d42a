// Package redistest starts real Redis servers on loopback for tests: a single server, a master with replicas
// and Sentinels, or a Cluster. They are stopped when their test ends.
package redistest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

// Server is one process, redis-server or redis-sentinel.
type Server struct {
	Addr   string // host:port
	Socket string // path of a Unix socket of the same server; "" for a Sentinel
	Dir    string
	binary string // the program; "" means the installed one
	cmd    *exec.Cmd
	args   []string
	env    []string
	t      testing.TB
}

var usedPorts sync.Map

// FreePort returns a port that is free now. It returns each port only once, because a test may choose several ports
// before the first server listens. The port is not in the range that systems use for outgoing connections, so no
// connection can occupy it before the server starts.
func FreePort(tb testing.TB) int {
	tb.Helper()
	for range 100 {
		port := 10_000 + rand.IntN(20_000)
		if _, before := usedPorts.LoadOrStore(port, true); before {
			continue
		}
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	tb.Fatal("no port is free")
	return 0
}

// Start starts one server with additional arguments (--name value …), and waits until it answers.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return StartAt(tb, FreePort(tb), args...)
}

// StartAt starts one server at a port, and waits until it answers.
func StartAt(tb testing.TB, port int, args ...string) *Server {
	tb.Helper()
	s := launch(tb, port, "", nil, args...)
	s.Wait()
	return s
}

// StartReplica starts a replica of master, of the same program, with additional arguments, and waits until it follows.
func StartReplica(tb testing.TB, master *Server, args ...string) *Server {
	tb.Helper()
	host, port, _ := net.SplitHostPort(master.Addr)
	s := StartBinary(tb, master.binary, nil, append([]string{"--replicaof", host + " " + port}, args...)...)
	s.follows()
	return s
}

// follows waits until s, a replica, follows its master.
func (s *Server) follows() {
	s.t.Helper()
	Eventually(s.t, "the replica follows", func() bool {
		info := s.Do("INFO", "replication")
		return strings.Contains(info, "master_link_status:up") && strings.Contains(info, "role:slave")
	})
}

// StartBinary starts the server program at path ("" means the installed one), with env added to the environment, and
// waits until it answers.
func StartBinary(tb testing.TB, path string, env []string, args ...string) *Server {
	tb.Helper()
	s := launch(tb, FreePort(tb), path, env, args...)
	s.Wait()
	return s
}

func launch(tb testing.TB, port int, path string, env []string, args ...string) *Server {
	tb.Helper()
	// The path must be short, because the path of a Unix socket has at most about a hundred bytes.
	dir, err := os.MkdirTemp("", "rl") //nolint:usetesting // t.TempDir is too long for a Unix socket
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	s := &Server{Addr: fmt.Sprintf("127.0.0.1:%d", port), Socket: filepath.Join(dir, "s"), Dir: dir, binary: path, env: env, t: tb}
	s.args = append([]string{
		"--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--unixsocket", s.Socket,
		"--save", "", "--dir", dir, "--logfile", "log", "--maxmemory-policy", "noeviction",
	}, args...)
	s.Restart()
	tb.Cleanup(s.Kill)
	return s
}

// Restart starts a killed process again, with the data that it had saved (usually none). args are additional arguments
// for this run. Restart does not wait until the server answers; Wait does.
func (s *Server) Restart(args ...string) {
	s.t.Helper()
	path := s.binary
	if path == "" {
		path = tooltest.Path(s.t, "redis-server")
	}
	s.cmd = exec.Command(path, append(slices.Clip(s.args), args...)...)
	s.cmd.Env = append(os.Environ(), s.env...)
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// Kill ends the process at once, as a crash does.
func (s *Server) Kill() {
	if s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

// Client returns a client that connects only to s. The end of the test closes it.
func (s *Server) Client() *goredis.Client {
	c := goredis.NewClient(&goredis.Options{Addr: s.Addr, Protocol: 2, DisableIdentity: true})
	s.t.Cleanup(func() { c.Close() })
	return c
}

// Do runs a command and returns its reply as text; an error ends the test.
func (s *Server) Do(args ...any) string {
	s.t.Helper()
	c := goredis.NewClient(&goredis.Options{Addr: s.Addr, Protocol: 2, DisableIdentity: true})
	defer c.Close()
	v, err := c.Do(context.Background(), args...).Result()
	if err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
	return fmt.Sprint(v)
}

// Wait waits until s answers.
func (s *Server) Wait() {
	s.t.Helper()
	c := goredis.NewClient(&goredis.Options{Addr: s.Addr, MaxRetries: -1, Protocol: 2, DisableIdentity: true})
	defer c.Close()
	Eventually(s.t, "redis at "+s.Addr+" answers", func() bool {
		err := c.Ping(context.Background()).Err()
		return err == nil || strings.HasPrefix(err.Error(), "NOAUTH")
	})
}

// Eventually waits until ok returns true. After a minute it ends the test.
func Eventually(tb testing.TB, condition string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("waited a minute until %s", condition)
		}
	}
}

// Cluster is a Redis Cluster of masters with a replica each.
type Cluster struct {
	Masters, Replicas []*Server // at the start, Replicas[i] is the replica of Masters[i]
}

// StartCluster starts n masters and n replicas, with additional arguments for each. A node counts as failed after a
// second without an answer.
func StartCluster(tb testing.TB, n int, args ...string) *Cluster {
	tb.Helper()
	c := &Cluster{}
	for i := range 2 * n {
		bus := FreePort(tb)
		s := launch(tb, FreePort(tb), "", nil, append([]string{"--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
			"--cluster-port", fmt.Sprint(bus), "--cluster-replica-validity-factor", "0"}, args...)...)
		if i < n {
			c.Masters = append(c.Masters, s)
		} else {
			c.Replicas = append(c.Replicas, s)
		}
	}
	for _, s := range c.All() {
		s.Wait()
	}
	const slots = 16384
	for i, s := range c.Masters {
		s.Do("CLUSTER", "ADDSLOTSRANGE", i*slots/n, (i+1)*slots/n-1)
		s.Do("CLUSTER", "SET-CONFIG-EPOCH", i+1)
	}
	for _, s := range c.All()[1:] {
		host, port, _ := net.SplitHostPort(s.Addr)
		c.Masters[0].Do("CLUSTER", "MEET", host, port, s.busPort())
	}
	c.WaitOK(tb, 2*n)
	for i, s := range c.Replicas {
		s.Do("CLUSTER", "REPLICATE", c.Masters[i].Do("CLUSTER", "MYID"))
	}
	for _, s := range c.Replicas {
		s.follows()
	}
	Eventually(tb, "every node knows the roles", func() bool {
		for _, s := range c.All() {
			if strings.Count(s.Do("CLUSTER", "NODES"), "slave") != n {
				return false
			}
		}
		return true
	})
	return c
}

// steady is the silence after which a server counts as failed once Steady was called. A busy machine may keep a server
// from running for a minute, but not for that long.
const steady = 10 * time.Minute

// Steady prevents failovers: no node regards another one as failed before it has been silent for ten minutes. It
// returns c.
func (c *Cluster) Steady() *Cluster {
	for _, s := range c.All() {
		s.Do("CONFIG", "SET", "cluster-node-timeout", steady.Milliseconds())
	}
	return c
}

func (s *Server) busPort() string {
	for i, arg := range s.args {
		if arg == "--cluster-port" {
			return s.args[i+1]
		}
	}
	return ""
}

func (c *Cluster) All() []*Server { return append(append([]*Server{}, c.Masters...), c.Replicas...) }

// WaitOK waits until every node knows n nodes, and reports the state of the cluster as ok.
func (c *Cluster) WaitOK(tb testing.TB, n int) {
	tb.Helper()
	for _, s := range c.All() {
		Eventually(tb, "the cluster is ok at "+s.Addr, func() bool {
			info := s.Do("CLUSTER", "INFO")
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r", n))
		})
	}
}

// URL returns the cluster's --redis-url.
func (c *Cluster) URL() string {
	var addrs []string
	for _, s := range c.All() {
		addrs = append(addrs, s.Addr)
	}
	return "redis+cluster://" + strings.Join(addrs, ",")
}

// Sentinels is a master with two replicas, watched by three Sentinels.
type Sentinels struct {
	Master    *Server
	Replicas  []*Server
	Sentinels []*Server
}

// StartSentinels starts a master, two replicas and three Sentinels. A master counts as down after a second without an
// answer.
func StartSentinels(tb testing.TB, args ...string) *Sentinels {
	tb.Helper()
	s := &Sentinels{Master: Start(tb, args...)}
	host, port, _ := net.SplitHostPort(s.Master.Addr)
	for range 2 {
		s.Replicas = append(s.Replicas, StartReplica(tb, s.Master, args...))
	}
	for range 3 {
		s.Sentinels = append(s.Sentinels, startSentinel(tb, host, port))
	}
	for _, one := range s.Sentinels {
		Eventually(tb, "the sentinels agree", func() bool {
			c := one.Client()
			defer c.Close()
			reply, err := c.Do(context.Background(), "SENTINEL", "CKQUORUM", "main").Text()
			return err == nil && strings.HasPrefix(reply, "OK 3") &&
				strings.Count(one.Do("SENTINEL", "REPLICAS", "main"), "runid") == 2
		})
	}
	return s
}

// Steady prevents failovers: no Sentinel regards the master as down before it has been silent for ten minutes. It
// returns s.
func (s *Sentinels) Steady() *Sentinels {
	for _, one := range s.Sentinels {
		one.Do("SENTINEL", "SET", "main", "down-after-milliseconds", steady.Milliseconds())
	}
	return s
}

func startSentinel(tb testing.TB, host, port string) *Server {
	tb.Helper()
	dir := tb.TempDir()
	own := FreePort(tb)
	file := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nlogfile log\nsentinel monitor main %s %s 2\n"+
		"sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 3000\n", own, dir, host, port)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	s := &Server{Addr: fmt.Sprintf("127.0.0.1:%d", own), Dir: dir, args: []string{file, "--sentinel"}, t: tb}
	s.Restart()
	tb.Cleanup(s.Kill)
	s.Wait()
	return s
}

// URL returns the --redis-url that finds the master through the Sentinels.
func (s *Sentinels) URL() string {
	var addrs []string
	for _, one := range s.Sentinels {
		addrs = append(addrs, one.Addr)
	}
	return "redis+sentinel://" + strings.Join(addrs, ",") + "/main"
}
