package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

type attacksCmd struct {
	sidecar

	Redis    string        `default:"redis-server" placeholder:"FILE" help:"The redis-server program."`
	Only     []string      `placeholder:"NAME" help:"Only these attacks."`
	Memory   int           `default:"64" help:"Memory of the sidecar's control group in MiB; 0 means that it has none. Requires root."`
	Deadline time.Duration `default:"20ms" help:"Deadline of a request; a later answer counts as failed. Envoy's default is 20ms."`
	Duration time.Duration `short:"d" default:"5s" help:"Duration of one attack."`
	Repeats  int           `default:"3" help:"Number of runs of each attack, each against a new sidecar."`
}

// Run measures a client with 200 requests a second beside each attack. The sidecar and Redis run on one processor, and
// the client and the attacker on the others. The attacker is a process of low priority, so that it does not delay the client
// itself. The sidecar runs in a control group with little memory.
func (c *attacksCmd) Run(a *app) error {
	dir, err := os.MkdirTemp("", "rlbench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, _, err := selfSigned(dir); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "%s; load average %s\n", machine(), loadAverage())
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "attack\tstore\tquiet requests\tdenied\tlate\tnot in time\tmost memory MiB\tafter 2 s\tCPU after\tsurvived\t")
	for _, kind := range attackKinds {
		if len(c.Only) > 0 && !slices.Contains(c.Only, kind.name) {
			continue
		}
		for _, store := range kind.stores {
			for range c.Repeats {
				if err := c.attack(a, w, dir, kind, store); err != nil {
					return fmt.Errorf("%s: %w", kind.name, err)
				}
				w.Flush()
			}
		}
	}
	return nil
}

func (c *attacksCmd) attack(a *app, w *tabwriter.Writer, dir string, kind attackKind, store string) error {
	group, err := newGroup(c.Memory)
	if err != nil {
		return err
	}
	defer group.remove()
	grpc, err := freeAddress()
	if err != nil {
		return err
	}
	http, err := freeAddress()
	if err != nil {
		return err
	}
	more := []string{"--grpc-listen", grpc, "--http-listen", http}
	if store == "redis" {
		r, address, err := startRedis(a, c.Redis, dir)
		if err != nil {
			return err
		}
		defer r.stop()
		more = append(more, "--redis-url", "redis://"+address)
	}
	target := grpc
	if kind.tls {
		more = append(more, "--tls-cert", filepath.Join(dir, "cert.pem"), "--tls-key", filepath.Join(dir, "key.pem"))
		target = "tls:" + grpc
	}
	// The sidecar inherits the group and the processor, because it reads both at its start.
	if err := errors.Join(group.enter(), pin(os.Getpid(), 0)); err != nil {
		return err
	}
	server, err := c.serve(a, dir, configured([]string{"user_id={}"}), grpc, more...)
	if err := errors.Join(err, group.leave()); err != nil {
		return err
	}
	defer server.stop()
	if err := pin(os.Getpid(), 1); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	attacker := exec.CommandContext(a, "nice", "-n", "19", self, "attack", "--kind", kind.name, "--grpc", grpc, "--http", http, "--duration", c.Duration.String())
	attacker.Stderr = a.stderr
	if err := attacker.Start(); err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond) // until the attack has begun
	quiet, err := load.Flood(a, load.FloodConfig{
		Target: target, Connections: 1, Rate: 200, Descriptors: []string{"user_id=quiet{}"}, Keys: 100, Deadline: c.Deadline, Resets: true,
		Duration: c.Duration - time.Second,
	})
	if err != nil {
		return err
	}
	_ = attacker.Wait() // some attacks end with an error of their connection
	most := group.most()
	time.Sleep(time.Second)
	before, _ := load.CPU(server.pid())
	time.Sleep(time.Second)
	after, aliveErr := load.CPU(server.pid())
	rss, _, _ := load.Memory(server.pid())
	bad := quiet.Due - quiet.OK
	fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%.1f %%\t%d\t%d\t%.0f %%\t%v\t\n", kind.name, store, quiet.Due, quiet.Denied, quiet.Late+quiet.Unsent+quiet.Failed,
		100*float64(bad)/float64(max(1, quiet.Due)), most>>20, rss>>20, 100*(after-before).Seconds(), aliveErr == nil)
	return nil
}

// startRedis starts a Redis server on the first processor.
func startRedis(ctx context.Context, program, dir string) (*child, string, error) {
	if err := find(program); err != nil {
		return nil, "", err
	}
	address, port, err := freePort()
	if err != nil {
		return nil, "", err
	}
	r, err := startChild(ctx, "redis-server", address, program, "--bind", "127.0.0.1", "--port", port, "--dir", dir, "--save", "", "--appendonly", "no")
	if err != nil {
		return nil, "", err
	}
	return r, address, pin(r.pid(), 0)
}

// group is a control group that bounds the memory of the sidecar. Its zero value bounds nothing.
type group struct{ folder, peak string }

func newGroup(mib int) (group, error) {
	if mib == 0 {
		return group{}, nil
	}
	g, bound := group{"/sys/fs/cgroup/memory/rlbench" + strconv.Itoa(os.Getpid()), "memory.max_usage_in_bytes"}, "memory.limit_in_bytes"
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		g, bound = group{"/sys/fs/cgroup/rlbench" + strconv.Itoa(os.Getpid()), "memory.peak"}, "memory.max"
	}
	err := os.Mkdir(g.folder, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(g.folder, bound), []byte(strconv.Itoa(mib<<20)), 0o600)
	}
	if err != nil {
		return g, fmt.Errorf("create a control group: %w; run this as root, or with --memory 0", err)
	}
	return g, nil
}

func (g group) enter() error { return g.moveTo(g.folder) }

func (g group) leave() error { return g.moveTo(filepath.Dir(g.folder)) }

func (g group) moveTo(folder string) error {
	if g.folder == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(folder, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o600)
}

func (g group) most() int64 {
	text, err := os.ReadFile(filepath.Join(g.folder, g.peak))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}

func (g group) remove() {
	if g.folder != "" {
		_ = os.Remove(g.folder)
	}
}

type attackCmd struct {
	Kind     string        `required:"" help:"Name of the attack."`
	GRPC     string        `name:"grpc" required:"" placeholder:"ADDR"`
	HTTP     string        `name:"http" required:"" placeholder:"ADDR"`
	Duration time.Duration `default:"5s"`
}

// Run attacks a server on this machine for a time.
func (c *attackCmd) Run(a *app) error {
	for _, address := range []string{c.GRPC, c.HTTP} {
		if host, _, err := net.SplitHostPort(address); err != nil || !net.ParseIP(host).IsLoopback() {
			return fmt.Errorf("%s is not a loopback address; only servers on this machine are attacked", address)
		}
	}
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 19)
	ctx, cancel := context.WithTimeout(a, c.Duration)
	defer cancel()
	at := slices.IndexFunc(attackKinds, func(k attackKind) bool { return k.name == c.Kind })
	if at < 0 {
		return fmt.Errorf("no attack is named %q", c.Kind)
	}
	attackKinds[at].run(ctx, c)
	return nil
}

var clientTLS = &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}} //nolint:gosec // a server of this process
