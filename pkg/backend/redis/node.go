package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// doer is the part of a go-redis client that a node needs.
type doer interface {
	Process(ctx context.Context, cmd goredis.Cmder) error
}

// node is a Store over one Redis server (or one that stands for the master of the day). All
// charges of a Take go in one script call.
type node struct {
	client doer
	now    func() algorithms.Micros // nil: the server's clock
	plain  atomic.Bool              // the server does not know a shebang
	trips  sync.Pool
}

func newNode(client doer, now func() algorithms.Micros) *node {
	return &node{client: client, now: now, trips: sync.Pool{New: func() any { return &trip{} }}}
}

// Take implements backend.Store. The outcome of a call that got no answer is not known, so it is
// never sent again; a script that the server did not know was not run, so it is.
func (n *node) Take(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
	t := n.trips.Get().(*trip)
	defer n.trips.Put(t)
	t.reset()
	for i := range charges {
		t.add(&charges[i])
	}
	now := algorithms.Micros(0)
	if n.now != nil {
		now = n.now()
	}
	t.finish(now)
	answer, err := n.call(ctx, t)
	if err == nil {
		err = read(answer, decisions)
	}
	if err != nil {
		fail(decisions, err)
	}
}

// call runs the script: by its name, and where the server has not got it, in full; where it does
// not know a shebang, without.
func (n *node) call(ctx context.Context, t *trip) (string, error) {
	form := shebang
	if n.plain.Load() {
		form = plain
	}
	answer, err := n.run(ctx, t.by(form, false))
	if isReply(err, "NOSCRIPT") {
		answer, err = n.run(ctx, t.by(form, true))
	}
	if err != nil && form == shebang && strings.Contains(err.Error(), "Error compiling script") {
		n.plain.Store(true)
		answer, err = n.run(ctx, t.by(plain, true))
	}
	return answer, err
}

func (n *node) run(ctx context.Context, args []any) (string, error) {
	cmd := once{goredis.NewCmd(ctx, args...)}
	if err := n.client.Process(ctx, cmd); err != nil {
		return "", err
	}
	return cmd.Text()
}

// once is a command that is never sent again when its answer is lost: it may have been charged.
type once struct{ *goredis.Cmd }

// NoRetry tells go-redis so.
func (once) NoRetry() bool { return true }

// isReply tells whether err is the server's own reply with this code, so that the command is known
// not to have run.
func isReply(err error, code string) bool {
	var reply goredis.Error
	return errors.As(err, &reply) && strings.HasPrefix(reply.Error(), code)
}

// fail answers that the store could not decide.
func fail(decisions []backend.Decision, err error) {
	if !errors.Is(err, backend.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	for i := range decisions {
		decisions[i] = backend.Decision{Err: err}
	}
}
