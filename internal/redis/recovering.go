package redis

import (
	"context"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// recovering is a goredis.Hook of every client of this package. go-redis panics at some replies of another form than it
// expects, also on goroutines of its own. The hook makes the command fail instead.
//
// A pipeline must have no command whose reply go-redis reads element by element, such as HSCAN. If an element of such a
// reply is nil or an error, go-redis reads the rest of the reply as the reply to the next command of the pipeline. The
// bytes that it then takes for a length have not been examined by replyBounds.
type recovering struct{}

func newClient(o *goredis.Options) *goredis.Client { return withRecovery(goredis.NewClient(o)) }

// withTimeout returns a copy of client. client.WithTimeout returns a client without hooks.
func withTimeout(client *goredis.Client, timeout time.Duration) *goredis.Client {
	return withRecovery(client.WithTimeout(timeout))
}

func withRecovery(client *goredis.Client) *goredis.Client {
	client.AddHook(recovering{})
	return client
}

func (recovering) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (recovering) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = malformedReply(p, cmd)
			}
		}()
		return next(ctx, cmd)
	}
}

func (recovering) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = malformedReply(p, cmds...)
			}
		}()
		return next(ctx, cmds)
	}
}

// malformedReply makes commands fail after a panic. Any of them may have run.
func malformedReply(panicked any, cmds ...goredis.Cmder) error {
	err := fmt.Errorf("redis: invalid reply: %v", panicked)
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
	return err
}
