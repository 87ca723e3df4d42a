package simulate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/redis"
)

// command is one command to a simulated server, with its reply or error. An error reply of the server is an errorReply.
type command struct {
	Args  []any
	Reply any // string, int64, []any, []slotRange, or nil
	Err   error
}

// slotRange is a part of the reply to CLUSTER SLOTS: the node at Addr is the master of the slots From to To, both
// included.
type slotRange struct {
	From, To int
	Addr     string
}

// errorReply is an error that a server replied.
type errorReply string

func (e errorReply) Error() string { return string(e) }

// RedisError marks e as a reply, for the Redis client.
func (errorReply) RedisError() {}

// connection is a goredis.Hook that makes a client call simulated servers.
type connection struct {
	process *process
	server  func(ctx context.Context, connected string) (string, error) // an argument of redis.Machine.Connect
	addr    string                                                      // the server to which a connection exists; "" if there is none
}

// connect implements redis.Machine.Connect.
func (p *process) connect(client *goredis.Client, server func(ctx context.Context, connected string) (string, error)) {
	client.AddHook(&connection{process: p, server: server})
}

func (*connection) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (c *connection) ProcessHook(goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error { return c.run(ctx, []goredis.Cmder{cmd}) }
}

func (c *connection) ProcessPipelineHook(goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return c.run
}

// run sends commands to the server, and returns the first error. After an error that is not a reply, or a READONLY,
// go-redis closes a connection.
func (c *connection) run(ctx context.Context, cmds []goredis.Cmder) error {
	addr, err := c.server(ctx, c.addr)
	if err != nil {
		return fail(cmds, err)
	}
	c.addr = addr
	err = c.process.send(ctx, addr, cmds)
	var reply goredis.Error
	if err != nil && (!errors.As(err, &reply) || strings.HasPrefix(err.Error(), "READONLY")) {
		c.addr = ""
	}
	return err
}

func fail(cmds []goredis.Cmder, err error) error {
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
	return err
}

// send sends commands to a server, and returns the first error.
func (p *process) send(ctx context.Context, addr string, cmds []goredis.Cmder) (first error) {
	commands := make([]command, len(cmds))
	for i, cmd := range cmds {
		commands[i].Args = cmd.Args()
	}
	p.call(ctx, addr, commands)
	for i, cmd := range cmds {
		if setReply(cmd, &commands[i]); first == nil {
			first = cmd.Err()
		}
	}
	return first
}

func setReply(cmd goredis.Cmder, c *command) {
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
		panic(fmt.Sprintf("simulate: no replies for %T", cmd))
	}
}

// masters replaces goredis.ClusterClient: it implements redis.Masters, and as a goredis.Hook it runs the commands of that
// client. It reads the layout of the Cluster, and follows MOVED and ASK.
type masters struct {
	process *process
	cluster *goredis.ClusterOptions
	layout  []slotRange
	clients map[string]*goredis.Client // by address
	reading bool
}

// masters implements redis.Machine.Masters.
func (p *process) masters(client *goredis.ClusterClient) redis.Masters {
	m := &masters{process: p, cluster: client.Options(), clients: map[string]*goredis.Client{}}
	client.AddHook(m)
	return m
}

var errNoLayout = &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("no node of the Cluster has reported its layout")}

func (m *masters) read(ctx context.Context) error {
	addrs := slices.Clone(m.cluster.Addrs)
	for i := range m.layout {
		addrs = append(addrs, m.layout[i].Addr)
	}
	at := m.process.rng.IntN(len(addrs))
	for i := range addrs {
		commands := []command{{Args: []any{"cluster", "slots"}}}
		within, cancel := context.WithDeadline(ctx, m.process.Now().Add(m.cluster.ReadTimeout))
		m.process.call(within, addrs[(at+i)%len(addrs)], commands)
		cancel()
		if commands[0].Err == nil {
			m.layout = commands[0].Reply.([]slotRange)
			return nil
		}
	}
	return errNoLayout
}

func (m *masters) master(key string) (addr string, err error) {
	slot := slotOf(key)
	for _, part := range m.layout {
		if part.From <= slot && slot <= part.To {
			return part.Addr, nil
		}
	}
	return "", errNoLayout
}

func (m *masters) client(addr string) *goredis.Client {
	if m.clients[addr] == nil {
		client := m.cluster.NewClient(&goredis.Options{Addr: addr, MaintNotificationsConfig: m.cluster.MaintNotificationsConfig})
		m.process.connect(client, func(context.Context, string) (string, error) { return addr, nil })
		m.clients[addr] = client
	}
	return m.clients[addr]
}

func (m *masters) MasterForKey(ctx context.Context, key string) (*goredis.Client, error) {
	if m.layout == nil {
		if err := m.read(ctx); err != nil {
			return nil, err
		}
	}
	addr, err := m.master(key)
	if err != nil {
		return nil, err
	}
	return m.client(addr), nil
}

func (m *masters) ForEachMaster(ctx context.Context, f func(context.Context, *goredis.Client) error) error {
	if err := m.read(ctx); err != nil {
		return err
	}
	var all []error
	for _, part := range slices.Clone(m.layout) {
		all = append(all, f(ctx, m.client(part.Addr)))
	}
	return errors.Join(all...)
}

func (*masters) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (m *masters) ProcessHook(goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error { return m.run(ctx, []goredis.Cmder{cmd}) }
}

func (m *masters) ProcessPipelineHook(goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return m.run
}

// run runs commands that all have the same key at the master of its slot. It follows at most MaxRedirects redirections.
func (m *masters) run(ctx context.Context, cmds []goredis.Cmder) error {
	if m.layout == nil {
		_ = m.read(ctx)
	}
	addr, err := m.master(keysOf(copied(cmds[0].Args()))[0])
	if err != nil {
		return fail(cmds, err)
	}
	all := cmds
	for range 1 + m.cluster.MaxRedirects {
		err = m.process.send(ctx, addr, all)
		words := strings.Fields(fmt.Sprint(err))
		switch {
		case len(words) == 3 && words[0] == "MOVED":
			addr, all = words[2], cmds
			m.readSoon()
		case len(words) == 3 && words[0] == "ASK":
			addr, all = words[2], nil
			for _, cmd := range cmds {
				all = append(all, goredis.NewStatusCmd(ctx, "asking"), cmd)
			}
		default:
			return err
		}
	}
	return err
}

func (m *masters) readSoon() {
	if m.reading {
		return
	}
	m.reading = true
	m.process.spawn(func() {
		ctx, cancel := context.WithDeadline(context.Background(), m.process.Now().Add(time.Second))
		defer cancel()
		_ = m.read(ctx)
		m.reading = false
	})
}
