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
// share it, if reuse; a socket never is.
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
	if !strings.HasPrefix(path, "@") {
		if err := removeStale(path); err != nil {
			return nil, err
		}
	}
	return net.Listen("unix", path)
}

// removeStale removes the socket at path if nobody listens there.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("%s is there already, and is no socket", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		conn.Close()
		return fmt.Errorf("another process listens at %s", path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	default:
		return err
	}
}

// isLocal tells whether address can be reached from this machine only.
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
