package server

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pires/go-proxyproto"
)

const byAddress = `
domain: d
descriptors:
  - {key: remote_address, rate_limit: {name: address, unit: hour, requests_per_unit: 2}}
auth:
  trusted_proxies: %s
  routes: [{descriptors: [[{key: remote_address, from: client_ip}]]}]
`

func header(tb testing.TB, version byte, command proxyproto.ProtocolVersionAndCommand, source net.Addr) string {
	tb.Helper()
	h := proxyproto.HeaderProxyFromAddrs(version, source, source)
	h.Command = command
	b, err := h.Format()
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

func at(address string) net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))
}

// sendAuth opens a connection and sends prefix, and then a POST to /v1/auth. It returns the status, or 0 if there is no
// answer.
func sendAuth(tb testing.TB, a net.Addr, prefix string, headers ...string) int {
	tb.Helper()
	conn := connect(tb, a)
	defer conn.Close()
	lines := append([]string{"POST /v1/auth HTTP/1.1", "Host: h", "Connection: close"}, headers...)
	if _, err := conn.Write([]byte(prefix + strings.Join(lines, "\r\n") + "\r\n\r\n")); err != nil {
		tb.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

func TestProxyProtocol(t *testing.T) {
	on := func(c *Config) { c.HTTPProxyProtocol = true }
	x := start(t, fmt.Sprintf(byAddress, "[127.0.0.1, 10.0.0.0/8]"), on)
	for range 50 { // connections that never send the rest of the header delay nobody
		_, _ = connect(t, x.HTTP).Write([]byte("PROXY"))
	}
	v1 := func(address string) string { return header(t, 1, proxyproto.PROXY, at(address)) }
	v2 := func(address string) string { return header(t, 2, proxyproto.PROXY, at(address)) }
	send := func(want int, start string, headers ...string) {
		t.Helper()
		if got := sendAuth(t, x.HTTP, start, headers...); got != want {
			t.Errorf("%q: %d, want %d", start, got, want)
		}
	}
	// Version 1 and version 2 of the header identify the same client.
	send(200, v1("192.0.2.1:1000"))
	send(200, v2("192.0.2.1:1001"))
	send(429, v1("192.0.2.1:1002"))
	// A client's own X-Forwarded-For is not trusted, because the client is not a proxy.
	send(429, v2("192.0.2.1:1003"), "X-Forwarded-For: 192.0.2.9")
	// The X-Forwarded-For of a proxy behind the load balancer is trusted.
	send(200, v2("10.1.1.1:1000"), "X-Forwarded-For: 192.0.2.2")
	send(200, v1("10.1.1.1:1000"), "X-Forwarded-For: 192.0.2.2")
	send(429, v1("10.1.1.1:1000"), "X-Forwarded-For: 192.0.2.2")
	// With IPv6, a /64 network is one client.
	send(200, v1("[2001:db8::1]:1000"))
	send(200, v2("[2001:db8::2]:1000"))
	send(429, v2("[2001:db8::3]:1000"))
	// Without a header, or with a header that contains no address, the address of the load balancer is used.
	send(200, "")
	send(200, "PROXY UNKNOWN\r\n")
	send(429, header(t, 2, proxyproto.LOCAL, at("192.0.2.7:1")))
	// A malformed header is rejected.
	send(0, "PROXY TCP4 nobody 192.0.2.1 1 1\r\n")
	send(0, "PROXY TCP4 192.0.2.1 192.0.2.1 1 1"+strings.Repeat(" ", 200)+"\r\n")
	send(0, header(t, 2, proxyproto.PROXY, &net.UnixAddr{Net: "unix", Name: "/x"}))
	// Only the first header of a connection counts. A second header comes from the client, so it is invalid
	// HTTP.
	send(400, v1("192.0.2.3:1")+v1("192.0.2.4:1"))
}

func TestProxyProtocolIsOnlyForTheTrusted(t *testing.T) {
	const header = "PROXY TCP4 192.0.2.1 192.0.2.1 1 1\r\n"
	on := func(c *Config) { c.HTTPProxyProtocol = true }
	for name, x := range map[string]*instance{
		"an untrusted peer":     start(t, fmt.Sprintf(byAddress, "[10.0.0.0/8]"), on),
		"it is not switched on": start(t, fmt.Sprintf(byAddress, "[127.0.0.1]")),
	} {
		if got := sendAuth(t, x.HTTP, header); got != 400 {
			t.Errorf("%s: %d, want 400", name, got)
		}
		if got := sendAuth(t, x.HTTP, ""); got != 200 {
			t.Errorf("%s, without it: %d, want 200", name, got)
		}
	}
	// The configuration determines which peers are trusted. That includes peers on a Unix socket.
	socket := filepath.Join(t.TempDir(), "http.sock")
	x := start(t, fmt.Sprintf(byAddress, "[10.0.0.0/8]"), on, func(c *Config) { c.HTTP = "unix://" + socket })
	if got := sendAuth(t, x.HTTP, header); got != 400 {
		t.Errorf("a socket that is not trusted: %d, want 400", got)
	}
	x.write(t, fmt.Sprintf(byAddress, "[unix]"))
	x.reload(t)
	if got := sendAuth(t, x.HTTP, header); got != 200 {
		t.Errorf("a trusted socket: %d, want 200", got)
	}
}
