package listen

import (
	"errors"
	"net"
	"time"

	"github.com/pires/go-proxyproto"
)

// proxyHeaderTimeout bounds the wait for a PROXY header. Load balancers send the header as soon as they have
// connected.
const proxyHeaderTimeout = 5 * time.Second

// ProxyProtocol returns a listener that reads a header of the PROXY protocol, version 1 or 2, at the start of
// connections from peers for which trusts returns true. The header contains the client's address; without a header the
// proxy itself is the client. From other peers the listener reads no header. If such a peer sends a header, the request is
// malformed HTTP.
func ProxyProtocol(l net.Listener, trusts func(peer net.Addr) bool) net.Listener {
	return &proxyproto.Listener{
		Listener: l, ReadHeaderTimeout: proxyHeaderTimeout, ValidateHeader: checkProxyHeader,
		ConnPolicy: func(c proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
			if trusts(c.Upstream) {
				return proxyproto.USE, nil
			}
			return proxyproto.SKIP, nil
		},
	}
}

// checkProxyHeader rejects the header of a connection that is not TCP. A client of the proxy's Unix socket would
// otherwise count as a client of a Unix socket of this machine.
func checkProxyHeader(h *proxyproto.Header) error {
	if _, isTCP := h.SourceAddr.(*net.TCPAddr); h.Command.IsProxy() && h.SourceAddr != nil && !isTCP {
		return errors.New("the PROXY header does not describe a TCP connection")
	}
	return nil
}
