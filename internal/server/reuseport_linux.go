package server

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

const canSharePorts = true

// sharePort is the Control function of a net.ListenConfig. It lets several sockets listen on one port. The
// kernel distributes connections among them.
func sharePort(_, _ string, c syscall.RawConn) error {
	return control(c, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
}

// leavePort directs new connections to the second socket that shares the port of l. That socket belongs to
// the new process. Without this, the kernel would reset the connections in l's queue when l is closed. If
// there is no second socket, l continues to receive connections.
func leavePort(l net.Listener) error {
	tcp, is := l.(*net.TCPListener)
	if !is {
		return nil
	}
	c, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	// Sockets are numbered in the order in which they began to listen. If the BPF program returns a number
	// that no socket has, the kernel ignores the result.
	choose := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1}
	return control(c, func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: 1, Filter: &choose})
	})
}

// queued reports whether the kernel holds connections that l has not accepted yet.
func queued(l net.Listener) bool {
	socket, is := l.(syscall.Conn)
	if !is {
		return false
	}
	c, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	err = control(c, func(fd int) (err error) {
		for {
			n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			if !errors.Is(err, syscall.EINTR) {
				return err
			}
		}
	})
	return err == nil && n > 0
}

func control(c syscall.RawConn, do func(fd int) error) error {
	var done error
	err := c.Control(func(fd uintptr) { done = do(int(fd)) })
	return errors.Join(err, done)
}
