package accesslog

import (
	"net"
	"syscall"
)

// grow gives c a receive buffer of wantedBuffer bytes, or as many as the kernel allows.
func grow(c *net.UDPConn) {
	_ = c.SetReadBuffer(wantedBuffer)
	option(c, func(fd int) {
		_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUFFORCE, wantedBuffer) // only with CAP_NET_ADMIN
	})
}

// bufferOf returns the size of the receive buffer of c. The kernel doubles the size that was set, for its own data.
func bufferOf(c *net.UDPConn) (size int) {
	option(c, func(fd int) { size, _ = syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF) })
	return size / 2
}

func option(c *net.UDPConn, f func(fd int)) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}
