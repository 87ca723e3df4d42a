// Package routing finds what the section auth of a configuration asks about a request: its route, and
// the descriptors made of what the request brings. What is in a Request is believed: whoever fills it
// in knows whom to believe.
package routing

import (
	"net/netip"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/target"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Request is a request as a proxy received it. All of it but Client is bytes that a client chose.
type Request struct {
	Method string
	// Host in lower case, without port (HostName).
	Host string
	// Path in its one form (target.Path), and Query as it came.
	Path, Query string
	// Header by canonical name.
	Header map[string][]string
	// Client is its address; the zero Addr: not known.
	Client netip.Addr
}

// HostName is host in lower case, without its port and a dot at the end.
func HostName(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	return lower(strings.TrimSuffix(host, "."))
}

// lower changes ASCII alone, as DNS and proxies do: strings.ToLower makes one of bytes that are not
// UTF-8, and a k of the sign for Kelvin.
func lower(text string) string {
	isUpper := func(c rune) bool { return 'A' <= c && c <= 'Z' }
	if !strings.ContainsFunc(text, isUpper) {
		return text
	}
	out := []byte(text)
	for i, c := range out {
		if isUpper(rune(c)) {
			out[i] = c + 'a' - 'A'
		}
	}
	return string(out)
}

// Find is the first route that matches; nil: none.
func Find(a *limiter.Auth, q *Request) *limiter.Route {
	for i := range a.Routes {
		if r := &a.Routes[i]; matches(r, q) {
			return r
		}
	}
	return nil
}

func matches(r *limiter.Route, q *Request) bool {
	switch {
	case r.PathPrefix && !strings.HasPrefix(q.Path, r.Path):
		return false
	case !r.PathPrefix && r.Path != "" && r.Path != q.Path:
		return false
	case r.Method != "" && r.Method != q.Method:
		return false
	case r.Host != "" && r.Host != q.Host:
		return false
	}
	for i := range r.Headers {
		h := &r.Headers[i]
		lines := q.Header[h.Name]
		if len(lines) == 0 || lines[0] != h.Value && (!h.Prefix || !strings.HasPrefix(lines[0], h.Value)) {
			return false
		}
	}
	return true
}

// Fill makes c ask what r asks about q. A descriptor of which a value is missing is left out.
func Fill(c *limiter.Call, a *limiter.Auth, r *limiter.Route, q *Request) {
	c.Request.Domain, c.Look = r.Domain, r.Look
	for _, entries := range r.Descriptors {
		d := c.AddDescriptor()
		d.Cost = r.Hits
		for i := range entries {
			value, ok := Value(a, &entries[i], q)
			if !ok {
				c.Descriptors = c.Descriptors[:len(c.Descriptors)-1]
				break
			}
			d.Entries = append(d.Entries, descriptors.Entry{Key: entries[i].Key, Value: value})
		}
	}
}

// Value is what e's source says; ok is false where it says nothing. Of several values the first
// counts.
func Value(a *limiter.Auth, e *limiter.AuthEntry, q *Request) (value string, ok bool) {
	switch e.From {
	case limiter.FromValue:
		return e.Value, true
	case limiter.FromClientIP:
		return clientNetwork(q.Client, a.IPv6Prefix)
	case limiter.FromMethod:
		return q.Method, true
	case limiter.FromPath:
		return q.Path, true
	case limiter.FromHost:
		return q.Host, q.Host != ""
	case limiter.FromHeader:
		if lines := q.Header[e.Name]; len(lines) > 0 {
			return lines[0], true
		}
		return "", false
	case limiter.FromQuery:
		return target.Query(q.Query, e.Name)
	case limiter.FromCookie:
		return cookie(q.Header["Cookie"], e.Name)
	case limiter.FromJWT:
		return claim(q.Header["Authorization"], e.Name)
	default:
		return "", false
	}
}

// clientNetwork is the address of a client, or the network that stands for it.
func clientNetwork(addr netip.Addr, ipv6Prefix int) (string, bool) {
	switch {
	case !addr.IsValid():
		return "", false
	case addr.Is6() && ipv6Prefix < addr.BitLen():
		network, err := addr.Prefix(ipv6Prefix)
		return network.String(), err == nil
	default:
		return addr.String(), true
	}
}
