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

// listen opens host:port, unix:///path or unix://@name (which has no file). What a server that is
// gone has left at path is removed first. A port is shared with other processes of this user that
// share it, if reuse; the path of a socket is taken from one that shares it, but not before takeOver.
func listen(address string, reuse bool) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, unixScheme)
	if !isUnix {
		var c net.ListenConfig
		if reuse {
			c.Control = sharePort
			c.SetMultipathTCP(false) // with it leavePort cannot say where connections go
		}
		l, err := c.Listen(context.Background(), "tcp", address)
		if reuse && errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w; a process that holds the port shares it only if it was started with --reuse-port too, by the same user", err)
		}
		return l, err
	}
	if path == "" {
		return nil, errors.New("there is no path; write unix:///path or unix://@name")
	}
	if strings.HasPrefix(path, "@") {
		return net.Listen("unix", path)
	}
	if reuse {
		return listenAside(path)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	return net.Listen("unix", path)
}

// sharedSocket listens at path+aside until takeOver has put it at path. It does not remove that when it
// is closed: by then it may be another process's. The next start replaces it.
type sharedSocket struct {
	*net.UnixListener
	path  string
	taken bool
}

// aside ends the name that a shared socket is bound to. Whoever connects is told that name, wherever the
// socket is by then, and so knows that its owner lets others take over.
const aside = ".next"

func listenAside(path string) (net.Listener, error) {
	if err := shares(path); err != nil {
		return nil, err
	}
	if err := removeStale(path + aside); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path + aside})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	return &sharedSocket{UnixListener: l, path: path}, nil
}

// shares is an error unless the socket at path, if there is one, may be replaced.
func shares(path string) error {
	holder, err := dialSocket(path)
	switch {
	case err != nil || holder == nil:
		return err
	case holder.String() != path+aside:
		return fmt.Errorf("another process listens at %s, and was not started with --reuse-port", path)
	default:
		return nil
	}
}

// takeOver has new connections to path come here: in one step, so that none finds nobody there. Those
// that wait for the process before still are its own.
func (l *sharedSocket) takeOver() error {
	l.taken = true
	return os.Rename(l.path+aside, l.path)
}

// Addr is what clients connect to.
func (l *sharedSocket) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: l.path} }

// Close stops listening.
func (l *sharedSocket) Close() error {
	err := l.UnixListener.Close()
	if !l.taken {
		err = errors.Join(err, os.Remove(l.path+aside))
	}
	return err
}

// takeOver puts the shared sockets of doors where clients look for them: all of them are open, so that
// the process before keeps its own where this one cannot start.
func takeOver(doors []door) error {
	for _, d := range doors {
		if l, ok := d.listener.(*sharedSocket); ok {
			if err := l.takeOver(); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeStale removes the socket at path if nobody listens there.
func removeStale(path string) error {
	switch holder, err := dialSocket(path); {
	case err != nil:
		return err
	case holder != nil:
		return fmt.Errorf("another process listens at %s", path)
	}
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// dialSocket tells what the socket at path says that it is bound to; nil: nobody listens, or nothing is
// there. It is an error if it is no socket.
func dialSocket(path string) (holder net.Addr, err error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case info.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("%s is there already, and is no socket", path)
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

// isLocal reports whether address can be reached from this machine only.
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
