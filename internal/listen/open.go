package listen

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// UnixScheme starts the address of a Unix socket.
const UnixScheme = "unix://"

// Open listens at host:port, unix:///path or unix://@name (which has no file). It first removes a socket
// file at path if no process listens there.
func Open(address string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, UnixScheme)
	if !isUnix {
		return net.Listen("tcp", address)
	}
	if path == "" {
		return nil, errors.New("the path is missing; write unix:///path or unix://@name")
	}
	if !strings.HasPrefix(path, "@") {
		if err := removeStale(path); err != nil {
			return nil, err
		}
	}
	return net.Listen("unix", path)
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket; remove it, or use another path", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		conn.Close()
		return fmt.Errorf("another process listens at %s; stop it, or use another path", path)
	case !errors.Is(err, syscall.ECONNREFUSED):
		return err
	}
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// IsLocal reports whether only this machine can reach address.
func IsLocal(address string) bool {
	if strings.HasPrefix(address, UnixScheme) {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
