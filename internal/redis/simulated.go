package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

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
	Reply any // string, int64, []any, or nil
	Err   error
}

// ErrorReply is an error that a server replied.
type ErrorReply = refusal

// transportTo returns the transport to a server. alive is called when it shows that the server lives.
func (s *Store) transportTo(a access, alive func()) transport {
	if s.config.Machine != nil {
		return &simulatedWire{machine: s.config.Machine, addr: a.addr, sentinels: a.sentinels}
	}
	return newWire(a.connect, alive)
}

// simulatedWire is the transport to a simulated server.
type simulatedWire struct {
	machine   *Machine
	addr      string
	sentinels *sentinels // if not nil, they name the server
	checked   string     // the server to which a connection exists; "" if there is none. It is used only with Sentinels
}

func (*simulatedWire) close() {}

func (*simulatedWire) lead() {}

func (w *simulatedWire) start(x *exchange) {
	w.machine.Go(func() {
		ctx, cancel := context.WithDeadline(context.Background(), x.until)
		defer cancel()
		x.replies, x.err = w.call(ctx, x.commands...)
		x.done()
	})
}

func (w *simulatedWire) call(ctx context.Context, commands ...[]any) ([]reply, error) {
	addr := w.addr
	if w.sentinels != nil {
		master, err := w.connect(ctx)
		if err != nil {
			return nil, err
		}
		addr = master
	}
	replies, err := w.send(ctx, addr, commands)
	if err != nil || isReply(firstError(replies), "READONLY") {
		w.checked = ""
	}
	return replies, err
}

// connect returns the address of the current master. Before the first commands, and after a failure, it checks that the
// server is the master.
func (w *simulatedWire) connect(ctx context.Context) (string, error) {
	addr, err := w.sentinels.current()
	switch {
	case err != nil:
		return "", err
	case addr == "":
		return "", errNoMasterYet
	case addr == w.checked:
		return addr, nil
	}
	replies, err := w.send(ctx, addr, [][]any{{"info", "replication"}})
	if err != nil {
		return "", err
	}
	if err := checkMaster(replies[0].text, firstError(replies)); err != nil {
		return "", err
	}
	if is, err := w.sentinels.current(); is != addr || err != nil { // the master has changed during the check
		return "", errOutdated
	}
	w.checked = addr
	return addr, nil
}

func (w *simulatedWire) send(ctx context.Context, addr string, commands [][]any) (replies []reply, err error) {
	calls := make([]Command, len(commands))
	for i := range commands {
		calls[i].Args = commands[i]
	}
	w.machine.Call(ctx, addr, calls)
	for _, c := range calls {
		if _, refused := errors.AsType[refusal](c.Err); c.Err != nil && !refused {
			return nil, c.Err
		}
		replies = append(replies, simulatedReply(c.Reply, c.Err))
	}
	return replies, nil
}

func simulatedReply(value any, err error) reply {
	if err != nil {
		return reply{kind: '-', text: err.Error()}
	}
	switch value := value.(type) {
	case nil:
		return reply{kind: '$', null: true}
	case string:
		return reply{kind: '$', text: value}
	case int64:
		return reply{kind: ':', text: strconv.FormatInt(value, 10)}
	case []any:
		r := reply{kind: '*'}
		for _, element := range value {
			r.elements = append(r.elements, simulatedReply(element, nil))
		}
		return r
	default:
		panic(fmt.Sprintf("redis: a simulated server replied a %T", value))
	}
}
