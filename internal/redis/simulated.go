package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/clock"
)

// Machine replaces the clock, the goroutines, the random numbers and the servers of a Store in a simulation.
type Machine struct {
	Clock clock.Clock
	// Go runs f concurrently.
	Go func(f func())
	// Random fills p with random bytes. Below returns a random number from 0 to n-1.
	Random func(p []byte)
	Below  func(n int) int
	Pause  func(d time.Duration)
	// Watch starts to watch the Sentinel at addr, and returns. From then on it calls onMaster with each address
	// of the master that the Sentinel reports, and onMessage with each message that the Sentinel publishes.
	Watch func(addr string, onMaster func(master string), onMessage func(channel, payload string))
	// Call sends commands to a server in one write, and waits for the replies until ctx ends. It sets Reply or
	// Err of each command.
	Call func(ctx context.Context, server string, commands []Command)
}

// Command is one command to a Redis server, with its reply or error. An error reply of the server is an
// ErrorReply.
type Command struct {
	Args  []any
	Reply any // string, int64, []any, []Slots, or nil
	Err   error
}

// Slots is a part of the reply to CLUSTER SLOTS: the node at Addr is the master of the slots From to To, both included.
type Slots struct {
	From, To int
	Addr     string
}

// ErrorReply is an error that a server replied.
type ErrorReply string

func (e ErrorReply) Error() string { return string(e) }

// RedisError marks e as a reply, for the Redis client.
func (ErrorReply) RedisError() {}

func (c Config) newClient(o *goredis.Options) *goredis.Client {
	if c.Machine == nil {
		return newClient(o)
	}
	o.MinIdleConns = 0 // no real connection is made
	client := newClient(o)
	c.simulate(client)
	return client
}

// simulate makes client call simulated servers if c belongs to a simulation.
func (c Config) simulate(client *goredis.Client) {
	if c.Machine != nil {
		client.AddHook(simulation{c.Machine, client.Options().Addr})
	}
}

// simulate makes client call simulated servers if s belongs to a simulation. With Sentinels, the client calls
// the current master.
func (s *Store) simulate(client *goredis.Client) {
	if s.sentinels != nil && s.config.Machine != nil {
		client.AddHook(&simulatedMaster{sentinels: s.sentinels})
		return
	}
	s.config.simulate(client)
}

// simulatedWire is the transport to a simulated server.
type simulatedWire struct {
	machine *Machine
	client  *goredis.Client
}

func (s *Store) simulatedWire(o *goredis.Options) *simulatedWire {
	own := *o
	own.MinIdleConns = 0 // no real connection is made
	client := newClient(&own)
	s.simulate(client)
	return &simulatedWire{s.config.Machine, client}
}

func (w *simulatedWire) close() { _ = w.client.Close() }

func (*simulatedWire) lead() {}

func (w *simulatedWire) start(x *exchange) {
	w.machine.Go(func() {
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
	machine *Machine
	addr    string
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
	commands := make([]Command, len(cmds))
	for i, cmd := range cmds {
		commands[i].Args = cmd.Args()
	}
	s.machine.Call(ctx, s.addr, commands)
	for i, cmd := range cmds {
		setReply(cmd, &commands[i])
	}
}

func setReply(cmd goredis.Cmder, c *Command) {
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
