package httpapi

import (
	"cmp"
	"net/http"
	"net/netip"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/canonical"
	"github.com/rlsidecar/rlsidecar/internal/clientip"
	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/routing"
)

// clientRequest is the client's request as a proxy describes it.
type clientRequest struct {
	routing.Request
	r    *http.Request
	auth *limiter.Auth
	// nginx means that X-Original-* and X-Real-IP take precedence over X-Forwarded-*. Otherwise X-Forwarded-* take
	// precedence, because Traefik and Caddy replace only those, and forward the rest of their clients' headers, which
	// may be forged. Headers without precedence are used only if the preferred ones are missing.
	nginx bool
	// peer is the address of the proxy; the zero Addr means a Unix socket.
	peer    netip.Addr
	trusted bool
}

// read sets the fields of routing.Request from a.r, the auth request. own is the path of a.r below /v1/auth, and
// ownQuery is its query. Envoy's ext_authz appends the path of the client's request to /v1/auth.
func (a *clientRequest) read(own, ownQuery string) {
	a.setPeer()
	a.Method, a.Host, a.Header = a.r.Method, a.r.Host, a.r.Header
	a.Query, a.Fragment = ownQuery, strings.Contains(a.r.RequestURI, "#")
	if a.trusted {
		if uri := a.firstHeader("X-Original-Uri", "X-Forwarded-Uri"); uri != "" {
			own, a.Query = canonical.Split(uri)
			a.Fragment = strings.Contains(uri, "#")
		}
		if method := a.firstHeader("X-Original-Method", "X-Forwarded-Method"); method != "" {
			a.Method = method
		}
		if host := a.header("X-Forwarded-Host"); host != "" {
			a.Host = strings.TrimSpace(host[strings.LastIndexByte(host, ',')+1:])
		}
	}
	a.SetPath(cmp.Or(own, "/"))
	a.Host = routing.HostName(a.Host)
	a.Client = a.client()
}

// firstHeader returns the value of one of two headers. If both are present, nginxName takes precedence behind NGINX,
// and otherName behind other proxies. If both are missing or empty, firstHeader returns "".
func (a *clientRequest) firstHeader(nginxName, otherName string) string {
	first, second := otherName, nginxName
	if a.nginx {
		first, second = second, first
	}
	if s := a.header(first); s != "" {
		return s
	}
	return a.header(second)
}

// header returns the last line of a header, or "". A proxy that appends to the client's headers writes the last
// line. name is the name in the canonical form of net/http.
func (a *clientRequest) header(name string) string {
	if lines := a.r.Header[name]; len(lines) > 0 {
		return lines[len(lines)-1]
	}
	return ""
}

func (a *clientRequest) setPeer() {
	if httpauth.ThroughUnixSocket(a.r) {
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
