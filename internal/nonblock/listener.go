package nonblock

import "net"

// Listener returns a listener that wraps the connections of l in Conns if possible. A connection whose
// client sends without a pause yields to other goroutines after each 32 KiB, and at calls of TakeTurn.
func Listener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if c := Wrap(nc); c != nil {
		c.enableYield()
		return c, nil
	}
	return nc, nil
}
