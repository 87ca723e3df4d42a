package httpapi

import (
	"net/http"
	"net/netip"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/routing"
	"github.com/rlsidecar/rlsidecar/internal/target"
)

// asked is the request that a proxy asks about.
type asked struct {
	routing.Request
	r    *http.Request
	auth *limiter.Auth
	// nginx: X-Original-* and X-Real-IP are what the proxy says; else X-Forwarded-* are. The others
	// count where these are missing. Proxies that pass their clients' headers on (Traefik, Caddy)
	// replace X-Forwarded-* only, so that a client could send the others.
	nginx bool
	// peer is who asks; the zero Addr is who comes through a Unix socket.
	peer netip.Addr
	// trusted: what the peer says is believed.
	trusted bool
}

// read finds what a.r is about. own is where it was asked below /v1/auth: Envoy's ext_authz appends
// its client's path there.
func (a *asked) read(own, ownQuery string) {
	a.believe()
	a.Method, a.Host, a.Header = a.r.Method, a.r.Host, a.r.Header
	a.Path, a.Query = own, ownQuery
	if a.trusted {
		if uri := a.said("X-Original-Uri", "X-Forwarded-Uri"); uri != "" {
			a.Path, a.Query = target.Split(uri)
		}
		if method := a.said("X-Original-Method", "X-Forwarded-Method"); method != "" {
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

// said is what the proxy says in one of its headers, in the order of its kind.
func (a *asked) said(original, forwarded string) string {
	if !a.nginx {
		original, forwarded = forwarded, original
	}
	if s := a.header(original); s != "" {
		return s
	}
	return a.header(forwarded)
}

// header is the last line of a header that a proxy sets: one that appends to its client's comes last.
func (a *asked) header(name string) string {
	if lines := a.r.Header[name]; len(lines) > 0 {
		return lines[len(lines)-1]
	}
	return ""
}
