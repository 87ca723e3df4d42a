package server

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/pires/go-proxyproto"
)

// proxyHeaderTimeout bounds the wait for a PROXY header, which balancers send at once.
const proxyHeaderTimeout = 5 * time.Second

// proxyProtocol has connections of trusted proxies start with a header of the PROXY protocol, of
// version 1 or 2, that says whose they are. One that has none is the proxy's own. Of all others
// nothing is read: such a header from them is no HTTP.
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

// trusts reports whether the configuration in use trusts a peer.
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

// checkProxyHeader refuses who is at no address: somebody at a Unix socket of the proxy's machine
// would be taken for one at ours.
func checkProxyHeader(h *proxyproto.Header) error {
	if _, isTCP := h.SourceAddr.(*net.TCPAddr); h.Command.IsProxy() && h.SourceAddr != nil && !isTCP {
		return errors.New("the PROXY header is of no TCP connection")
	}
	return nil
}
