package nonblock

import "net"

// Listener accepts Conns, where l's are connections that can be. A client that sends without a pause keeps its
// connection from none of the others: it takes turns with them.
func Listener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if c := Wrap(nc); c != nil {
		c.takeTurns()
		return c, nil
	}
	return nc, nil
}
