package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// mastersOf returns client. In a simulation it returns a simulated client, and makes client send its commands
// through the simulated client.
func (c Config) mastersOf(client *goredis.ClusterClient) masters {
	if c.Machine == nil {
		return client
	}
	s := &simulatedMasters{config: c, cluster: client.Options(), clients: map[string]*goredis.Client{}}
	client.AddHook(s)
	return s
}

// simulatedMasters replaces goredis.ClusterClient in a simulation: it implements masters, and as a goredis.Hook it runs
// the commands of that client. It reads the layout of the Cluster, and follows MOVED and ASK.
type simulatedMasters struct {
	config  Config
	cluster *goredis.ClusterOptions
	layout  []Slots
	clients map[string]*goredis.Client // by address
	reading bool
}

var errNoLayout = notSent("no node of the Cluster has reported its layout")

func (s *simulatedMasters) read(ctx context.Context) error {
	addrs := slices.Clone(s.cluster.Addrs)
	for i := range s.layout {
		addrs = append(addrs, s.layout[i].Addr)
	}
	at := s.config.Machine.Below(len(addrs))
	for i := range addrs {
		commands := []Command{{Args: []any{"cluster", "slots"}}}
		within, cancel := context.WithDeadline(ctx, s.config.Machine.Clock.Now().Add(s.cluster.ReadTimeout))
		s.config.Machine.Call(within, addrs[(at+i)%len(addrs)], commands)
		cancel()
		if commands[0].Err == nil {
			s.layout = commands[0].Reply.([]Slots)
			return nil
		}
	}
	return errNoLayout
}

func (s *simulatedMasters) master(slot int) (addr string, err error) {
	for _, part := range s.layout {
		if part.From <= slot && slot <= part.To {
			return part.Addr, nil
		}
	}
	return "", errNoLayout
}

func (s *simulatedMasters) client(addr string) *goredis.Client {
	if s.clients[addr] == nil {
		o := s.cluster
		s.clients[addr] = s.config.newClient(&goredis.Options{
			Addr: addr, MaxRetries: o.MaxRetries, ContextTimeoutEnabled: true, Dialer: o.Dialer,
			ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout, PipelinePoolSize: o.PipelinePoolSize,
			MaintNotificationsConfig: o.MaintNotificationsConfig,
		})
	}
	return s.clients[addr]
}

func (s *simulatedMasters) MasterForKey(ctx context.Context, key string) (*goredis.Client, error) {
	if s.layout == nil {
		if err := s.read(ctx); err != nil {
			return nil, err
		}
	}
	addr, err := s.master(slotOfName(key))
	if err != nil {
		return nil, err
	}
	return s.client(addr), nil
}

func (s *simulatedMasters) ForEachMaster(ctx context.Context, f func(context.Context, *goredis.Client) error) error {
	if err := s.read(ctx); err != nil {
		return err
	}
	var all []error
	for _, part := range slices.Clone(s.layout) {
		all = append(all, f(ctx, s.client(part.Addr)))
	}
	return errors.Join(all...)
}

func slotOfName(key string) int {
	if from := strings.IndexByte(key, '{'); from >= 0 {
		if n := strings.IndexByte(key[from+1:], '}'); n > 0 {
			key = key[from+1:][:n]
		}
	}
	return slotOf(key)
}

// keyOf returns the first key of a command.
func keyOf(cmd goredis.Cmder) string {
	args, at := cmd.Args(), 1
	if name := cmd.Name(); name == "eval" || name == "evalsha" {
		at = 3
	}
	switch key := args[at].(type) {
	case string:
		return key
	case *string:
		return *key
	default:
		panic(fmt.Sprintf("redis: a simulation knows no key of %T", key))
	}
}

func (s *simulatedMasters) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (s *simulatedMasters) ProcessHook(goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		return s.run(ctx, []goredis.Cmder{cmd})
	}
}

// All commands of a pipeline have the same key.
func (s *simulatedMasters) ProcessPipelineHook(goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return s.run
}

// run runs commands that all have the same key at the master of its slot. It follows at most MaxRedirects
// redirections.
func (s *simulatedMasters) run(ctx context.Context, cmds []goredis.Cmder) error {
	if s.layout == nil {
		_ = s.read(ctx)
	}
	addr, err := s.master(slotOfName(keyOf(cmds[0])))
	if err != nil {
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
		return err
	}
	asking := false
	for range 1 + s.cluster.MaxRedirects {
		err = s.send(ctx, addr, cmds, asking)
		words := strings.Fields(fmt.Sprint(err))
		switch {
		case len(words) == 3 && words[0] == "MOVED":
			addr, asking = words[2], false
			s.readSoon()
		case len(words) == 3 && words[0] == "ASK":
			addr, asking = words[2], true
		default:
			return err
		}
	}
	return err
}

// send sends commands to one node. If asking is true, ASKING comes before each command.
func (s *simulatedMasters) send(ctx context.Context, addr string, cmds []goredis.Cmder, asking bool) (first error) {
	var all []goredis.Cmder
	for _, cmd := range cmds {
		if asking {
			all = append(all, goredis.NewStatusCmd(ctx, "asking"))
		}
		all = append(all, cmd)
	}
	simulation{s.config.Machine, addr}.call(ctx, all)
	for _, cmd := range all {
		if err := cmd.Err(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (s *simulatedMasters) readSoon() {
	if s.reading {
		return
	}
	s.reading = true
	s.config.Machine.Go(func() {
		ctx, cancel := context.WithDeadline(context.Background(), s.config.Machine.Clock.Now().Add(reloadTimeout))
		defer cancel()
		_ = s.read(ctx)
		s.reading = false
	})
}
