package httpapi

import (
	"net"
	"net/http"
	"net/netip"

	"github.com/rlsidecar/rlsidecar/internal/clientip"
)

func (a *clientRequest) setPeer() {
	if local, ok := a.r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "unix" {
		a.trusted = a.auth.TrustUnix
		return
	}
	if peer, ok := clientip.Peer(a.r.RemoteAddr); ok {
		a.peer = peer
		a.trusted = a.auth.Trusts(a.peer)
	}
}

// client returns the address of the client. That is the peer, unless a trusted proxy names another address.
func (a *clientRequest) client() netip.Addr {
	if !a.trusted {
		return a.peer
	}
	realIP, hasRealIP := clientip.Hop(a.header("X-Real-Ip"))
	if a.nginx && hasRealIP {
		return realIP
	}
	nearest, untrusted := clientip.Forwarded(a.r.Header["X-Forwarded-For"], a.peer, a.auth.Trusts)
	if hasRealIP && !untrusted { // with ext_authz, Envoy appends its own address to X-Forwarded-For, so nearest would be Envoy
		return realIP
	}
	return nearest
}
