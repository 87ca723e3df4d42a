package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/outside"
)

func (c Config) newClient(o *goredis.Options) *goredis.Client {
	if c.Outside == nil {
		return newClient(o)
	}
	o.MinIdleConns = 0 // no real connection is made
	client := newClient(o)
	c.simulate(client)
	return client
}

// simulate makes client call simulated servers if c belongs to a simulation.
func (c Config) simulate(client *goredis.Client) {
	if c.Outside != nil {
		client.AddHook(simulation{c.Outside, client.Options().Addr})
	}
}

// simulate makes client call simulated servers if s belongs to a simulation. With Sentinels, the client calls
// the current master.
func (s *Store) simulate(client *goredis.Client) {
	if s.sentinels != nil && s.config.Outside != nil {
		client.AddHook(&simulatedMaster{sentinels: s.sentinels})
		return
	}
	s.config.simulate(client)
}

// simulatedWire is the transport to a simulated server.
type simulatedWire struct {
	world  *outside.World
	client *goredis.Client
}

func (s *Store) simulatedWire(o *goredis.Options) *simulatedWire {
	own := *o
	own.MinIdleConns = 0 // no real connection is made
	client := newClient(&own)
	s.simulate(client)
	return &simulatedWire{s.config.Outside, client}
}

func (w *simulatedWire) close() { _ = w.client.Close() }

func (*simulatedWire) lead() {}

func (w *simulatedWire) start(x *exchange) {
	w.world.Go(func() {
		ctx, cancel := context.WithDeadline(context.Background(), x.until)
		defer cancel()
		pipe := w.client.Pipeline()
		var cmds []*goredis.Cmd
		for _, command := range x.commands {
			cmds = append(cmds, pipe.Do(ctx, command...))
		}
		_, _ = pipe.Exec(ctx) // each command has its own error
		x.replies, x.err = x.replies[:0], nil
		for _, cmd := range cmds {
			r, err := cmd.Result()
			var refused goredis.Error
			switch r := r.(type) {
			case string:
				x.replies = append(x.replies, reply{kind: '$', text: r})
			case int64:
				x.replies = append(x.replies, reply{kind: ':', text: strconv.FormatInt(r, 10)})
			default:
				if x.replies = append(x.replies, reply{kind: '-', text: err.Error()}); !errors.As(err, &refused) {
					x.err = err
				}
			}
		}
		x.done()
	})
}

// simulation is a goredis.Hook that sends the commands of a client to a simulated server.
type simulation struct {
	world *outside.World
	addr  string
}

func (simulation) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (s simulation) ProcessHook(goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		s.call(ctx, []goredis.Cmder{cmd})
		return cmd.Err()
	}
}

func (s simulation) ProcessPipelineHook(goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		s.call(ctx, cmds)
		for _, cmd := range cmds {
			if err := cmd.Err(); err != nil {
				return err
			}
		}
		return nil
	}
}

func (s simulation) call(ctx context.Context, cmds []goredis.Cmder) {
	commands := make([]outside.Command, len(cmds))
	for i, cmd := range cmds {
		commands[i].Args = cmd.Args()
	}
	s.world.Call(ctx, s.addr, commands)
	for i, cmd := range cmds {
		setReply(cmd, &commands[i])
	}
}

func setReply(cmd goredis.Cmder, c *outside.Command) {
	err := c.Err
	if _, set := cmd.(*goredis.BoolCmd); c.Reply == nil && err == nil && !set { // SET NX replies nil for false
		err = goredis.Nil
	}
	cmd.SetErr(err)
	if err != nil {
		return
	}
	switch cmd := cmd.(type) {
	case *goredis.Cmd:
		cmd.SetVal(c.Reply)
	case *goredis.StatusCmd:
		cmd.SetVal(c.Reply.(string))
	case *goredis.StringCmd:
		cmd.SetVal(c.Reply.(string))
	case *goredis.IntCmd:
		cmd.SetVal(c.Reply.(int64))
	case *goredis.BoolCmd:
		cmd.SetVal(c.Reply != nil)
	default:
		panic(fmt.Sprintf("redis: a simulation has no replies for %T", cmd))
	}
}
