package redis

import (
	"context"
	"net"
	"syscall"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/pkg/nonblock"
)

// dialer is go-redis's, but for how a connection without TLS is read and written.
func dialer(o *goredis.Options) func(ctx context.Context, network, addr string) (net.Conn, error) {
	dial := goredis.NewDialer(o)
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := nonblock.Wrap(nc)
		if c == nil {
			return nc, nil
		}
		raw, err := c.SyscallConn()
		return &conn{c, look{raw, c}}, err
	}
}

// conn is a connection that go-redis looks at before each call, for the server may have closed it.
type conn struct {
	*nonblock.Conn
	look look
}

// SyscallConn implements syscall.Conn, by which go-redis looks.
func (c *conn) SyscallConn() (syscall.RawConn, error) { return &c.look, nil }

type look struct {
	syscall.RawConn
	conn *nonblock.Conn
}

// Read calls f only if it would find something. That is all that go-redis wants of it: usually there is
// nothing, and to find that out by f would tell the scheduler of a system call.
func (l *look) Read(f func(fd uintptr) bool) error {
	if l.conn.Quiet() {
		return nil
	}
	return l.RawConn.Read(f)
}
