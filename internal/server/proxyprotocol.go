package server

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/pires/go-proxyproto"
)

// proxyHeaderTimeout bounds the wait for a PROXY header. Load balancers send the header as soon as they have
// connected.
const proxyHeaderTimeout = 5 * time.Second

// proxyProtocol returns a listener that reads a header of the PROXY protocol, version 1 or 2, at the start of
// connections from trusted proxies. The header contains the client's address; without a header the proxy
// itself is the client. From other peers the listener reads no header. If such a peer sends a header, the
// request is malformed HTTP.
func (s *server) proxyProtocol(l net.Listener) net.Listener {
	return &proxyproto.Listener{
		Listener: l, ReadHeaderTimeout: proxyHeaderTimeout, ValidateHeader: checkProxyHeader,
		ConnPolicy: func(c proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
			if s.trusts(c.Upstream) {
				return proxyproto.USE, nil
			}
			return proxyproto.SKIP, nil
		},
	}
}

func (s *server) trusts(peer net.Addr) bool {
	snapshot := s.limiter.Current()
	if snapshot == nil || snapshot.Auth == nil {
		return false
	}
	if peer.Network() == "unix" {
		return snapshot.Auth.TrustUnix
	}
	p, err := netip.ParseAddrPort(peer.String())
	return err == nil && snapshot.Auth.Trusts(p.Addr())
}

// checkProxyHeader rejects the header of a connection that is not TCP. A client of the proxy's Unix socket would
// otherwise count as a client of a Unix socket of this machine.
func checkProxyHeader(h *proxyproto.Header) error {
	if _, isTCP := h.SourceAddr.(*net.TCPAddr); h.Command.IsProxy() && h.SourceAddr != nil && !isTCP {
		return errors.New("the PROXY header does not describe a TCP connection")
	}
	return nil
}
