//go:build !linux

package nonblock

import (
	"net"
	"runtime"
	"syscall"
)

// Conn is not supported on this system, where Wrap returns nil and no method is called.
type Conn struct{ net.Conn }

func Wrap(net.Conn) *Conn { return nil }

func (*Conn) enableYield() {}

func (*Conn) TakeTurn() {}

func (*Conn) Await() error { return net.ErrClosed }

func (*Conn) Ended() bool { return false }

func (*Conn) CloseWrite() error { return net.ErrClosed }

func (*Conn) SyscallConn() (syscall.RawConn, error) { return nil, net.ErrClosed }

func (c *Conn) WriteOnce(b []byte) (int, error) { return c.Write(b) }

func Yield() { runtime.Gosched() }

// Pool starts a goroutine for each function on this system.
type Pool struct{}

func (*Pool) Go(f func()) { go f() }

func (*Pool) Close() {}
