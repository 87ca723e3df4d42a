//go:build !linux

package nonblock

import (
	"net"
	"syscall"
)

// Conn is not there on this system.
type Conn struct{ net.Conn }

// Wrap is nil.
func Wrap(net.Conn) *Conn { return nil }

func (*Conn) takeTurns() {}

// Quiet is not called.
func (*Conn) Quiet() bool { return false }

// Ended is not called.
func (*Conn) Ended() bool { return false }

// CloseWrite is not called.
func (*Conn) CloseWrite() error { return net.ErrClosed }

// SyscallConn is not called.
func (*Conn) SyscallConn() (syscall.RawConn, error) { return nil, net.ErrClosed }

// WriteOnce is not called.
func (c *Conn) WriteOnce(b []byte) (int, error) { return c.Write(b) }

// Crew starts a goroutine for each function.
type Crew struct{}

// Go has f run.
func (*Crew) Go(f func()) { go f() }

// Close does nothing.
func (*Crew) Close() {}
