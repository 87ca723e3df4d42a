//go:build !linux

package nonblock

import (
	"net"
	"syscall"
)

// Conn is not supported on this system, where Wrap returns nil.
type Conn struct{ net.Conn }

func Wrap(net.Conn) *Conn { return nil }

func (*Conn) enableYield() {}

// Await is never called on this system.
func (*Conn) Await() error { return net.ErrClosed }

// Quiet is never called on this system.
func (*Conn) Quiet() bool { return false }

// Ended is never called on this system.
func (*Conn) Ended() bool { return false }

// CloseWrite is never called on this system.
func (*Conn) CloseWrite() error { return net.ErrClosed }

// SyscallConn is never called on this system.
func (*Conn) SyscallConn() (syscall.RawConn, error) { return nil, net.ErrClosed }

// WriteOnce is never called on this system.
func (c *Conn) WriteOnce(b []byte) (int, error) { return c.Write(b) }

// Pool starts a goroutine for each function on this system.
type Pool struct{}

func (*Pool) Go(f func()) { go f() }

func (*Pool) Close() {}
