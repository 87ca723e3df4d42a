package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"
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
	// Connect makes client call simulated servers. Before each call, server gets the address to which client is connected,
	// or "", and returns the address that client must call.
	Connect func(client *goredis.Client, server func(ctx context.Context, connected string) (string, error))
	// Masters makes client call the simulated masters of a Cluster, and returns them.
	Masters func(client *goredis.ClusterClient) Masters
	// Watch starts to watch the Sentinel at addr, and returns. From then on it calls onMaster with each address
	// of the master that the Sentinel reports, and onMessage with each message that the Sentinel publishes.
	Watch func(addr string, onMaster func(master string), onMessage func(channel, payload string))
}

func (m *Machine) connect(client *goredis.Client, addr string) {
	m.Connect(client, func(context.Context, string) (string, error) { return addr, nil })
}

// simulatedWire is the transport to a simulated server.
type simulatedWire struct {
	machine *Machine
	client  *goredis.Client
}

func (s *Store) simulatedWire(o *goredis.Options) *simulatedWire {
	w := &simulatedWire{s.config.Machine, newClient(o)}
	if s.sentinels != nil {
		w.machine.Connect(w.client, s.sentinels.simulated)
	} else {
		w.machine.connect(w.client, o.Addr)
	}
	return w
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

// simulate makes client call the simulated master. w receives the answers and the messages of the simulated Sentinels at
// addrs.
func (w *sentinels) simulate(client *goredis.Client, addrs []string) {
	for _, addr := range addrs {
		w.machine.Watch(addr, w.named, func(channel, payload string) { w.message(channel, strings.Fields(payload)) })
	}
	w.machine.Connect(client, w.simulated)
}

// simulated returns the address of the current simulated master. If it is not the one to which a client is connected, the
// server must first report that it is the master.
func (w *sentinels) simulated(ctx context.Context, connected string) (string, error) {
	addr, err := w.current()
	switch {
	case err != nil:
		return "", err
	case addr == "":
		return "", notSent("no Sentinel has named the master yet")
	case addr == connected:
		return addr, nil
	}
	client := w.clientOf(addr)
	defer client.Close()
	if err := checkMaster(ctx, client); err != nil {
		return "", err
	}
	if is, err := w.current(); is != addr || err != nil { // the master has changed during the check
		return "", errOutdated
	}
	return addr, nil
}
