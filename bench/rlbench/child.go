package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

// maxWait is the longest time that a server may need to start or to stop.
const maxWait = 2 * time.Minute

type child struct {
	name    string
	address string
	command *exec.Cmd
	output  bytes.Buffer // read only after the process has exited
	exited  chan struct{}
}

func (c *child) pid() int { return c.command.Process.Pid }

func startChild(ctx context.Context, name, address, program string, args ...string) (*child, error) {
	c := &child{name: name, address: address, command: exec.Command(program, args...), exited: make(chan struct{})}
	c.command.Stdout, c.command.Stderr = &c.output, &c.output
	c.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() { _ = c.command.Wait(); close(c.exited) }()
	for end := time.Now().Add(maxWait); ; time.Sleep(20 * time.Millisecond) {
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
	_ = c.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.exited:
	case <-time.After(maxWait):
		_ = c.command.Process.Kill()
		<-c.exited
	}
}

func startCeiling(ctx context.Context) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	return startChild(ctx, "the ceiling", address, program, "ceiling", "--listen", address)
}

type sidecar struct {
	Sidecar    string   `required:"" type:"existingfile" placeholder:"FILE" help:"The rlsidecar program."`
	SidecarArg []string `sep:"none" placeholder:"ARG" help:"Additional argument of that program. May be repeated."`
	Admin      string   `placeholder:"ADDR" help:"Address of its admin listener, for profiles during the run (a free port)."`
}

// limits maps the keys of descriptors to limits. The limit of user_id is never reached. The limit of hot_id
// is reached by the second request. Both refill slowly, because the store would delete a full bucket during
// the measurement. The other limits are fixed windows that are never full: a long one without leases, a long
// one with leases, and one of a second. A configuration contains only the limits in use, because limits share
// the room of the store.
var limits = map[string]string{
	"user_id":   "{algorithm: token_bucket, rate: 1, period: 1m, capacity: 100000000}",
	"hot_id":    "{algorithm: token_bucket, rate: 1, period: 1h, capacity: 1}",
	"window_id": "{algorithm: fixed_window, rate: 1000000000000, period: 1d}",
	"leased_id": "{algorithm: fixed_window, rate: 1000000000000, period: 1d, lease: {max: 5%, for: 250ms}}",
	"second_id": "{unit: second, requests_per_unit: 1000000000}",
}

func configured(descriptors []string) string {
	var b strings.Builder
	b.WriteString("domain: bench\ndescriptors:\n")
	for _, d := range descriptors {
		key, _, _ := strings.Cut(d, "=")
		fmt.Fprintf(&b, "  - {key: %s, rate_limit: %s}\n", key, limits[key])
	}
	return b.String()
}

func (s *sidecar) start(ctx context.Context, dir string, c load.Config, more ...string) (*child, error) {
	listen, err := freeAddress()
	if err != nil {
		return nil, err
	}
	return s.serve(ctx, dir, configured(c.Descriptors), listen, append(more, "--grpc-listen", listen)...)
}

// serve starts rlsidecar with a configuration and the flags in more, and waits until it accepts connections at
// address.
func (s *sidecar) serve(ctx context.Context, dir, config, address string, more ...string) (*child, error) {
	file, err := os.CreateTemp(dir, "*.yaml")
	if err != nil {
		return nil, err
	}
	_, err = file.WriteString(config)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	args := []string{"serve", "--config", file.Name(), "--drain-delay", "0s"}
	for _, port := range []string{"--grpc-listen", "--http-listen", "--admin-listen"} {
		if slices.Contains(more, port) {
			continue
		}
		at, err := freeAddress()
		if err != nil {
			return nil, err
		}
		if port == "--admin-listen" && s.Admin != "" {
			at = s.Admin
		}
		args = append(args, port, at)
	}
	return startChild(ctx, "rlsidecar", address, s.Sidecar, slices.Concat(args, more, s.SidecarArg)...)
}

// lastPort is the port of the last address that freeAddress returned. Such ports are below the range that systems use
// for outgoing connections, so no connection can occupy one before its server starts.
var lastPort = 10_000 + rand.IntN(20_000)

func freeAddress() (string, error) {
	var err error
	for range 100 {
		lastPort++
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprint("127.0.0.1:", lastPort)); err == nil {
			return l.Addr().String(), l.Close()
		}
	}
	return "", fmt.Errorf("find a free port: %w", err)
}

func freePort() (address, port string) {
	address = must(freeAddress())
	return address, portOf(address)
}

func portOf(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }
