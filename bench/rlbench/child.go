package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

// patience is how long a server may take to start, or to end.
const patience = 30 * time.Second

// child is a server that runs as long as it is measured.
type child struct {
	name    string
	address string
	foreign int // the process of a server that was there before, and stays; command is nil then
	command *exec.Cmd
	output  bytes.Buffer // read only when it has exited
	exited  chan struct{}
}

func (c *child) pid() int {
	if c.command == nil {
		return c.foreign
	}
	return c.command.Process.Pid
}

// startChild runs a server and waits until address answers.
func startChild(ctx context.Context, name, address, program string, args ...string) (*child, error) {
	c := &child{name: name, address: address, command: exec.Command(program, args...), exited: make(chan struct{})}
	c.command.Stdout, c.command.Stderr = &c.output, &c.output
	c.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() { _ = c.command.Wait(); close(c.exited) }()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		conn, err := load.Dial(ctx, address)
		if err == nil {
			_ = conn.Close()
			return c, nil
		}
		select {
		case <-c.exited:
			return nil, fmt.Errorf("%s ended at once: %s", name, bytes.TrimSpace(c.output.Bytes()))
		default:
		}
		if ctx.Err() != nil || time.Now().After(end) {
			c.stop()
			return nil, fmt.Errorf("%s does not listen: %w", name, err)
		}
	}
}

func (c *child) stop() {
	if c.command == nil {
		return
	}
	_ = c.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.exited:
	case <-time.After(patience):
		_ = c.command.Process.Kill()
		<-c.exited
	}
}

// startCeiling starts a server of that kind of ceilings.
func startCeiling(ctx context.Context, kind string) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	return startChild(ctx, "the ceiling", address, program, "ceiling", "--kind", kind, "--listen", address)
}

// sidecar says how to run rlsidecar.
type sidecar struct {
	Sidecar    string   `required:"" xor:"server" type:"existingfile" placeholder:"FILE" help:"The rlsidecar program."`
	SidecarArg []string `sep:"none" placeholder:"ARG" help:"One more argument for it; may be repeated."`
	Admin      string   `placeholder:"ADDR" help:"Where its admin port listens, to profile it meanwhile; otherwise anywhere."`
}

// limits are configurations, by the key of their descriptors: a limit that is never reached, one that is
// by the second request, and one that can be leased. Each is alone, for limits share the room there is.
// The first two refill slowly: a bucket that is full again is as good as new, and would be forgotten while
// it is counted.
var limits = map[string]string{
	"user_id":   "domain: bench\ndescriptors: [{key: user_id, rate_limit: {algorithm: token_bucket, rate: 1, period: 1m, capacity: 100000000}}]\n",
	"hot_id":    "domain: bench\ndescriptors: [{key: hot_id, rate_limit: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 1}}]\n",
	"leased_id": "domain: bench\nlimits: {leased: {algorithm: fixed_window, rate: 1000000000000, period: 1d, lease: {max: 5%, for: 250ms}}}\ndescriptors: [{key: leased_id, limit: leased}]\n",
}

// start runs rlsidecar with the limit of the key that c asks about; its file is in dir.
func (s *sidecar) start(ctx context.Context, dir string, c load.Config, more ...string) (*child, error) {
	key, _, _ := strings.Cut(c.Descriptors[0], "=")
	config := filepath.Join(dir, key+".yaml")
	if err := os.WriteFile(config, []byte(limits[key]), 0o600); err != nil {
		return nil, err
	}
	var addresses [3]string
	for i := range addresses {
		var err error
		if addresses[i], err = freeAddress(); err != nil {
			return nil, err
		}
	}
	if s.Admin != "" {
		addresses[2] = s.Admin
	}
	args := append([]string{"serve", "--config", config, "--grpc-listen", addresses[0],
		"--http-listen", addresses[1], "--admin-listen", addresses[2], "--drain-delay", "0s"}, slices.Concat(more, s.SidecarArg)...)
	return startChild(ctx, "rlsidecar", addresses[0], s.Sidecar, args...)
}

// freeAddress is a loopback port that nobody listens on now.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}
