package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

const unixScheme = "unix://"

// listen listens at host:port, unix:///path or unix://@name (which has no file). It first removes a socket
// file at path if no process listens there.
//
// If reuse is true, listen shares the port with other processes of this user that share it too. If another process
// shares the socket at path, listen does not replace that socket; takeOver does.
func listen(address string, reuse bool) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, unixScheme)
	if !isUnix {
		var c net.ListenConfig
		if reuse {
			c.Control = sharePort
			c.SetMultipathTCP(false) // leavePort cannot redirect connections of multipath TCP
		}
		l, err := c.Listen(context.Background(), "tcp", address)
		if reuse && errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w; the process that has the port shares it only if it runs with --reuse-port too, as the same user", err)
		}
		return l, err
	}
	if path == "" {
		return nil, errors.New("the path is missing; write unix:///path or unix://@name")
	}
	if strings.HasPrefix(path, "@") {
		return net.Listen("unix", path)
	}
	if reuse {
		return listenBeside(path)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	return net.Listen("unix", path)
}

// sharedSocket listens at path+nextSuffix until takeOver has moved the socket to path. After takeOver, Close
// does not remove the file, because the file may belong to another process by then. The next process that
// starts replaces the file.
type sharedSocket struct {
	*net.UnixListener
	path  string
	moved bool
}

// nextSuffix is the suffix of the name to which a shared socket is bound. A process that connects to the socket
// reads this name, even after the file has been renamed. The suffix means that the owner of the socket allows
// other processes to take over.
const nextSuffix = ".next"

func listenBeside(path string) (net.Listener, error) {
	if err := checkReplaceable(path); err != nil {
		return nil, err
	}
	if err := removeStale(path + nextSuffix); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path + nextSuffix})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	return &sharedSocket{UnixListener: l, path: path}, nil
}

func checkReplaceable(path string) error {
	owner, err := dialSocket(path)
	switch {
	case err != nil || owner == nil:
		return err
	case owner.String() != path+nextSuffix:
		return fmt.Errorf("another process listens at %s, and runs without --reuse-port; stop it, or give it that flag", path)
	default:
		return nil
	}
}

// takeOver moves the socket to path, so that new connections arrive here. The move is one atomic step, so
// there is always a process that listens at path. Connections in the queue of the old process stay there.
func (l *sharedSocket) takeOver() error {
	l.moved = true
	return os.Rename(l.path+nextSuffix, l.path)
}

// Addr returns the address that clients connect to.
func (l *sharedSocket) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: l.path} }

func (l *sharedSocket) Close() error {
	err := l.UnixListener.Close()
	if !l.moved {
		err = errors.Join(err, os.Remove(l.path+nextSuffix))
	}
	return err
}

// takeOver moves the shared sockets to their paths. It must be called after all listeners have been opened, so that
// the old process keeps its sockets if this process cannot start.
func takeOver(listeners []listener) error {
	for _, d := range listeners {
		if l, ok := d.socket.(*sharedSocket); ok {
			if err := l.takeOver(); err != nil {
				return err
			}
		}
	}
	return nil
}

func removeStale(path string) error {
	switch owner, err := dialSocket(path); {
	case err != nil:
		return err
	case owner != nil:
		return fmt.Errorf("another process listens at %s; stop it, or use another path", path)
	}
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// dialSocket returns the address to which the socket at path is bound, or nil if no process listens there.
// It returns an error if path is not a socket.
func dialSocket(path string) (owner net.Addr, err error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case info.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("%s exists and is not a socket; remove it, or use another path", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		defer conn.Close()
		return conn.RemoteAddr(), nil
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, nil
	default:
		return nil, err
	}
}

func isLocal(address string) bool {
	if strings.HasPrefix(address, unixScheme) {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
