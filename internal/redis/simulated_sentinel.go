package redis

import (
	"context"
	"errors"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// simulate returns a client of the current master in a simulation. w receives the answers and the messages of
// the simulated Sentinels at addrs.
func (w *sentinels) simulate(o *goredis.Options, addrs []string) *goredis.Client {
	for _, addr := range addrs {
		w.machine.Watch(addr, w.named, func(channel, payload string) { w.message(channel, strings.Fields(payload)) })
	}
	o.Network, o.Addr, o.MinIdleConns = "tcp", w.name, 0 // no connection is ever made
	client := newClient(o)
	client.AddHook(&simulatedMaster{sentinels: w})
	return client
}

// simulatedMaster is a goredis.Hook that simulates the connections of a client to the current master.
type simulatedMaster struct {
	sentinels *sentinels
	addr      string // the server to which a connection exists; "" if there is none
}

func (*simulatedMaster) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (m *simulatedMaster) ProcessHook(goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error { return m.run(ctx, []goredis.Cmder{cmd}) }
}

func (m *simulatedMaster) ProcessPipelineHook(goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return m.run
}

// run sends commands to the current master, and returns the first error. After an error that is not a reply, or a
// READONLY, the next commands check again that the server is the master.
func (m *simulatedMaster) run(ctx context.Context, cmds []goredis.Cmder) (first error) {
	addr, err := m.connect(ctx)
	if err != nil {
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
		return err
	}
	simulation{m.sentinels.machine, addr}.call(ctx, cmds)
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && first == nil {
			first = err
		}
	}
	var reply goredis.Error
	if first != nil && (!errors.As(first, &reply) || strings.HasPrefix(first.Error(), "READONLY")) { // go-redis closes a connection after such an error
		m.addr = ""
	}
	return first
}

// connect returns the address of the current master. Before the first commands it checks that the server is
// the master.
func (m *simulatedMaster) connect(ctx context.Context) (string, error) {
	addr, err := m.sentinels.current()
	switch {
	case err != nil:
		return "", err
	case addr == "":
		return "", notSent("no Sentinel has named the master yet")
	case addr == m.addr:
		return addr, nil
	}
	client := m.sentinels.clientOf(addr)
	defer client.Close()
	if err := checkMaster(ctx, client); err != nil {
		return "", err
	}
	if is, err := m.sentinels.current(); is != addr || err != nil { // the master has changed during the check
		return "", errOutdated
	}
	m.addr = addr
	return addr, nil
}
