package server

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// canSharePorts reports whether sharePort works here.
const canSharePorts = true

// sharePort is a net.ListenConfig's Control: several sockets may listen on one port, and the kernel
// spreads connections over them.
func sharePort(_, _ string, c syscall.RawConn) error {
	return control(c, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
}

// leavePort has the kernel give new connections to the second of those who share l's port, the one
// that came to take over, so that none is in l's queue when l is closed: it would be reset. Where
// there is no second, l keeps getting them.
func leavePort(l net.Listener) error {
	tcp, is := l.(*net.TCPListener)
	if !is {
		return nil
	}
	c, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	// Sockets are counted in the order in which they began to listen; a program that names one that is
	// not there is passed over.
	choose := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1}
	return control(c, func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: 1, Filter: &choose})
	})
}

func control(c syscall.RawConn, do func(fd int) error) error {
	var done error
	err := c.Control(func(fd uintptr) { done = do(int(fd)) })
	return errors.Join(err, done)
}
