//go:build !linux

package server

import (
	"errors"
	"net"
	"syscall"
)

// canSharePorts is false, because other systems have no SO_REUSEPORT, or direct all connections to one of the
// sockets.
const canSharePorts = false

func sharePort(string, string, syscall.RawConn) error { return errors.ErrUnsupported }

func leavePort(net.Listener) error { return errors.ErrUnsupported }

func queued(net.Listener) bool { return false }
