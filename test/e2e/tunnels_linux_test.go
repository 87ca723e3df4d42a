package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// A proxy that forwards an upgrade, or CONNECT, hands the connection over to the application if the application
// agrees. The proxy then sends no auth request for the requests inside this tunnel. The applications of the tests
// agree to every upgrade, and count the requests that arrive.

// newApplication returns a server for HTTP/1 and HTTP/2 without TLS that agrees to every upgrade. A tunnel leads to the
// address of the server, so requests inside the tunnel are served like those outside. handler itself answers an upgrade
// whose path ends in /websocket.
func newApplication(address string, handler http.HandlerFunc) *http.Server {
	server := &http.Server{ReadHeaderTimeout: maxWait, MaxHeaderBytes: 1 << 20, Protocols: &http.Protocols{}}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to := r.Header.Get("Upgrade")
		if to == "" || strings.HasSuffix(r.URL.Path, "/websocket") {
			handler(w, r)
			return
		}
		handler(httptest.NewRecorder(), r)
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return // HTTP/2 has no upgrades
		}
		defer conn.Close()
		inside, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		defer inside.Close()
		fmt.Fprintf(buffered, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", to)
		_ = buffered.Flush() // the next read reports an error
		_ = conn.SetDeadline(time.Time{})
		go func() { _, _ = io.Copy(inside, buffered); _ = inside.(*net.TCPConn).CloseWrite() }()
		_, _ = io.Copy(conn, inside)
	})
	return server
}

// tunnelAttack opens a tunnel with its first request, and then sends further requests through it.
type tunnelAttack struct {
	name    string
	request string   // the first line, by default GET /login HTTP/1.1
	headers []header // further headers of the first request
	http2   bool     // the requests inside the tunnel are sent over HTTP/2
	early   bool     // the requests inside the tunnel are sent at once, without waiting for the first answer
}

// connectAttacks open a tunnel in a stream of HTTP/2, by CONNECT (RFC 9113, 8.5) or extended CONNECT (RFC 8441).
var connectAttacks = []struct {
	name   string
	pseudo []header
	http2  bool // the requests inside the tunnel are sent over HTTP/2
}{
	{"CONNECT", []header{{":method", "CONNECT"}, {":authority", "shop.test:80"}}, false},
	{"CONNECT of a path", []header{{":method", "CONNECT"}, {":scheme", "http"}, {":path", "/login"}, {":authority", "shop.test"}}, false},
	{"extended CONNECT to h2c", extendedConnect("h2c"), true},
	{"extended CONNECT to another protocol", extendedConnect("foo"), false},
	{"extended CONNECT to a websocket", extendedConnect("websocket"), false},
	{"extended CONNECT to a websocket that speaks h2c", extendedConnect("websocket"), true},
}

func extendedConnect(to string) []header {
	return []header{
		{":method", "CONNECT"}, {":protocol", to}, {":scheme", "http"}, {":path", "/login"}, {":authority", "shop.test"},
		{"sec-websocket-version", "13"}, {"sec-websocket-key", webSocketKey.value},
	}
}

func upgrade(to string, more ...header) []header {
	return append([]header{{"Connection", "Upgrade"}, {"Upgrade", to}}, more...)
}

var (
	settings     = header{"HTTP2-Settings", "AAMAAABkAAQAAP__"}
	webSocketKey = header{"Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="}
	webSocket    = []header{{"Sec-WebSocket-Version", "13"}, webSocketKey}
)

var tunnelAttacks = []tunnelAttack{
	{name: "h2c", headers: []header{{"Connection", "Upgrade, HTTP2-Settings"}, {"Upgrade", "h2c"}, settings}, http2: true},
	{name: "h2c without settings", headers: upgrade("h2c"), http2: true},
	{name: "h2c with settings that Connection does not name", headers: upgrade("h2c", settings), http2: true},
	{name: "h2c in capitals", headers: upgrade("H2C", settings), http2: true},
	{name: "h2c early", headers: upgrade("h2c", settings), http2: true, early: true},
	{name: "h2c after websocket", headers: upgrade("websocket, h2c", append(webSocket, settings)...), http2: true},
	{name: "h2c in a second line", headers: append(upgrade("websocket", webSocket...), header{"Upgrade", "h2c"}), http2: true},
	{name: "h2c with a body", request: "POST /login HTTP/1.1", headers: upgrade("h2c", settings, header{"Content-Length", "0"}), http2: true},
	{name: "h2c with a method that proxies seldom see", request: "OPTIONS /login HTTP/1.1", headers: upgrade("h2c", settings), http2: true},
	{name: "another protocol", headers: upgrade("foo")},
	{name: "another protocol early", headers: upgrade("foo"), early: true},
	{name: "TLS", headers: upgrade("TLS/1.0")},
	{name: "an upgrade that Connection does not name", headers: []header{{"Upgrade", "foo"}}},
	{name: "an upgrade that a second Connection names", headers: []header{{"Connection", "keep-alive"}, {"Connection", "upgrade"}, {"Upgrade", "foo"}}},
	{name: "a websocket", headers: upgrade("websocket", webSocket...)},
	{name: "a websocket that speaks h2c", headers: upgrade("websocket", webSocket...), http2: true},
	{name: "a websocket without its headers", headers: upgrade("websocket")},
	{name: "a websocket in capitals", headers: upgrade("WebSocket", webSocket...)},
	{name: "CONNECT", request: "CONNECT shop.test:80 HTTP/1.1"},
	{name: "CONNECT early", request: "CONNECT shop.test:80 HTTP/1.1", early: true},
	{name: "CONNECT of a path", request: "CONNECT /login HTTP/1.1"},
	{name: "CONNECT with an upgrade", request: "CONNECT shop.test:80 HTTP/1.1", headers: upgrade("foo")},
}

// requests returns the bytes of n requests of the attack with these headers.
func (a tunnelAttack) requests(n int, headers ...header) []byte {
	var out bytes.Buffer
	if !a.http2 {
		for i := range n {
			fmt.Fprint(&out, "GET /login HTTP/1.1\r\nHost: shop.test\r\n")
			if i == n-1 {
				fmt.Fprint(&out, "Connection: close\r\n")
			}
			for _, h := range headers {
				fmt.Fprintf(&out, "%s: %s\r\n", h.name, h.value)
			}
			fmt.Fprint(&out, "\r\n")
		}
		return out.Bytes()
	}
	framer := startHTTP2(&out)
	for i := range n {
		all := append([]header{{":method", "GET"}, {":scheme", "http"}, {":path", "/login"}, {":authority", "shop.test"}}, headers...)
		startStream(framer, uint32(2*i+3), true, all...)
	}
	return out.Bytes()
}

// tunnelTime is how long an attack waits for the end of a connection.
const tunnelTime = 3 * time.Second

// attackTunnel sends n requests through a tunnel to address, all with the header attackHeader: name.
func attackTunnel(t *testing.T, address, client, name string, a tunnelAttack, n int) {
	t.Helper()
	headers := []header{{attackHeader, name}, {"X-Api-Key", name}, {"X-User", name}}
	first := a.request
	if first == "" {
		first = "GET /login HTTP/1.1"
	}
	var open bytes.Buffer
	fmt.Fprintf(&open, "%s\r\nHost: shop.test:80\r\n", first)
	for _, h := range append(headers, a.headers...) {
		fmt.Fprintf(&open, "%s: %s\r\n", h.name, h.value)
	}
	fmt.Fprint(&open, "\r\n")
	conn := dialFrom(t, client, address)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(tunnelTime))
	answers := bufio.NewReader(conn)
	rest := a.requests(n, headers...)
	if a.early {
		_, _ = conn.Write(append(open.Bytes(), rest...)) // the proxy may end the connection
	} else {
		_, _ = conn.Write(open.Bytes())
		resp, err := http.ReadResponse(answers, nil)
		if err != nil {
			return // the proxy ended the connection
		}
		if resp.StatusCode != http.StatusSwitchingProtocols && !strings.HasPrefix(first, "CONNECT") {
			_, _ = io.Copy(io.Discard, resp.Body)
		}
		_, _ = conn.Write(rest)
		framer := http2.NewFramer(io.Discard, answers)
		for ended := 0; a.http2 && resp.StatusCode == http.StatusSwitchingProtocols && ended < n; {
			frame, err := framer.ReadFrame()
			if err != nil {
				return
			}
			if h := frame.Header(); h.StreamID > 1 && h.Flags.Has(http2.FlagHeadersEndStream) && (h.Type == http2.FrameHeaders || h.Type == http2.FrameData) {
				if ended++; ended == n {
					return
				}
			}
		}
	}
	_, _ = io.Copy(io.Discard, answers) // until the connection or the time ends
}

// attackStream sends n requests as the body of a stream of HTTP/2 that starts with pseudo.
func attackStream(t *testing.T, address, client, name string, pseudo []header, inside tunnelAttack, n int) {
	t.Helper()
	headers := []header{{attackHeader, name}, {"X-Api-Key", name}}
	conn := dialFrom(t, client, address)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(tunnelTime))
	framer := startHTTP2(conn)
	startStream(framer, 1, false, append(pseudo, headers...)...)
	_ = framer.WriteData(1, false, inside.requests(n, headers...))
	for {
		frame, err := framer.ReadFrame()
		if err != nil { // the connection or the time has ended
			return
		}
		if h := frame.Header(); h.StreamID == 1 && (h.Type == http2.FrameRSTStream || h.Flags.Has(http2.FlagHeadersEndStream) && h.Type != http2.FrameWindowUpdate) {
			return // the stream has ended
		}
		if settings, ok := frame.(*http2.SettingsFrame); ok && !settings.IsAck() {
			_ = framer.WriteSettingsAck()
		}
	}
}

// TestTunnelAttacks checks the attacks: without a proxy, all of their requests reach the application.
func TestTunnelAttacks(t *testing.T) {
	t.Parallel()
	s := newStack(t, "9000", "")
	s.serveApplication(t)
	const n = 20
	for _, a := range tunnelAttacks {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			if attackTunnel(t, s.addr+":9000", "", a.name, a, n); s.countOf("login "+a.name) < n {
				t.Errorf("%d requests reached the application, want at least %d", s.countOf("login "+a.name), n)
			}
		})
	}
}

// tunnelsAreCounted opens a tunnel with the first, allowed request, and then sends four times as many requests as
// the limit allows.
func (s *stack) tunnelsAreCounted(t *testing.T) {
	t.Helper()
	n := 4 * s.keys.capacity
	attack := func(i int, name string, send func(t *testing.T, client, name string)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from := time.Now()
			send(t, fmt.Sprintf("127.69.0.%d", i+1), t.Name())
			if got, most := s.countOf("login "+t.Name()), s.keys.mostIn(from)+1; got > most {
				t.Errorf("%d requests reached the application, want at most %d", got, most)
			}
		})
	}
	for i, a := range tunnelAttacks {
		attack(i, a.name, func(t *testing.T, client, name string) {
			attackTunnel(t, s.addr+":"+s.port, client, name, a, n)
		})
	}
	for i, a := range connectAttacks {
		if s.http2 == "" {
			break
		}
		attack(len(tunnelAttacks)+i, "HTTP/2: "+a.name, func(t *testing.T, client, name string) {
			attackStream(t, s.addr+":"+s.http2, client, name, a.pseudo, tunnelAttack{http2: a.http2}, n)
		})
	}
}
