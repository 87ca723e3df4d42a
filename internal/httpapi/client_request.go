package httpapi

import (
	"net/http"
	"net/netip"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/routing"
	"github.com/rlsidecar/rlsidecar/internal/target"
)

// clientRequest is the client's request as a proxy describes it.
type clientRequest struct {
	routing.Request
	r    *http.Request
	auth *limiter.Auth
	// nginx means that X-Original-* and X-Real-IP take precedence. Otherwise X-Forwarded-* do. If the
	// preferred headers are missing, the others are used. Traefik and Caddy replace only X-Forwarded-* and
	// forward the other headers of their clients, so a client could forge those.
	nginx bool
	// peer is the address of the proxy; the zero Addr means a Unix socket.
	peer netip.Addr
	// trusted means that the headers of the peer are trusted.
	trusted bool
}

// read fills in the client's request from a.r. own is the path below /v1/auth: Envoy's ext_authz appends
// the client's path to it.
func (a *clientRequest) read(own, ownQuery string) {
	a.setPeer()
	a.Method, a.Host, a.Header = a.r.Method, a.r.Host, a.r.Header
	a.Path, a.Query = own, ownQuery
	if a.trusted {
		if uri := a.firstHeader("X-Original-Uri", "X-Forwarded-Uri"); uri != "" {
			a.Path, a.Query = target.Split(uri)
		}
		if method := a.firstHeader("X-Original-Method", "X-Forwarded-Method"); method != "" {
			a.Method = method
		}
		if host := a.header("X-Forwarded-Host"); host != "" {
			a.Host = strings.TrimSpace(host[strings.LastIndexByte(host, ',')+1:])
		}
	}
	if a.Path == "" {
		a.Path = "/"
	}
	a.Path, a.Host = target.Path(a.Path), routing.HostName(a.Host)
	a.Client = a.client()
}

// firstHeader returns the value of the first of two headers that is present. Behind NGINX, original comes first;
// behind other proxies, forwarded does.
func (a *clientRequest) firstHeader(original, forwarded string) string {
	if !a.nginx {
		original, forwarded = forwarded, original
	}
	if s := a.header(original); s != "" {
		return s
	}
	return a.header(forwarded)
}

// header returns the last line of a header. A proxy that appends to the client's headers writes the last
// line.
func (a *clientRequest) header(name string) string {
	if lines := a.r.Header[name]; len(lines) > 0 {
		return lines[len(lines)-1]
	}
	return ""
}
