package nonblock

import "net"

// Listener accepts Conns, where l's are connections that can be.
func Listener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if c := Wrap(nc); c != nil {
		return c, nil
	}
	return nc, nil
}
