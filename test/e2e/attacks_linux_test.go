package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/rlsidecar/rlsidecar/internal/target"
)

// The tables of this file list requests that a client could send to avoid its limit. The functions below send
// them through a proxy and check that the limit still applies.

type received struct {
	// keys has the values of all headers that an application might treat as X-Api-Key. CGI and its
	// successors, such as WSGI, do not distinguish "-" from "_". Some applications treat trailers as headers.
	keys []string
	path string
	// tenant is the value of the parameter tenant, as applications decode it.
	tenant string
}

func (s *stack) receive(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // trailers follow the body; without a whole body there are none
	got := &received{path: r.URL.Path, tenant: r.URL.Query().Get("tenant")}
	for _, fields := range []http.Header{r.Header, r.Trailer} {
		for name, lines := range fields {
			if strings.EqualFold(strings.ReplaceAll(name, "_", "-"), "X-Api-Key") {
				got.keys = append(got.keys, lines...)
			}
		}
	}
	s.counts.add(r)
	s.last.Store(got)
}

// gateway is a recipe that the test attacks: a proxy in front of the application of a stack.
type gateway struct {
	*stack
	port    string   // the port for HTTP/1
	http2   string   // the port for HTTP/2 without TLS; "" if the proxy does not support it
	proxied string   // the port for HTTP/1 after a PROXY protocol header
	client  string   // the address of the client; "" means any
	keys    bucket   // the numbers of the limit for each key; zero means perKey
	gaps    []string // names of keyAttacks that are known to succeed
}

type header struct{ name, value string }

// keyAttack is a request with a key in a spelling that some application accepts as that key.
type keyAttack struct {
	name  string
	http2 bool // the attack is sent over HTTP/2
	lines func(key string) []header
}

const apiKey = "x-api-key"

// trailer is not the name of a header: its value is sent as the key in a trailer, after the body.
const trailer = "TRAILER"

func oneLine(before, after string) func(string) []header {
	return func(key string) []header { return []header{{apiKey, before + key + after}} }
}

func twoLines(first, second header) func(string) []header {
	return func(key string) []header {
		lines := []header{first, second}
		for i := range lines {
			lines[i].value = strings.NewReplacer("KEY", key, "JUNK", "other-than-"+key).Replace(lines[i].value)
		}
		return lines
	}
}

var keyAttacks = []keyAttack{
	{"a blank after it", true, oneLine("", " ")},
	{"two blanks after it", true, oneLine("", "  ")},
	{"a blank before it", true, oneLine(" ", "")},
	{"a tab after it", true, oneLine("", "\t")},
	{"a tab before it", true, oneLine("\t", "")},
	{"a vertical tab after it", true, oneLine("", "\v")},
	{"a form feed before it", true, oneLine("\f", "")},
	{"a control byte that applications strip", true, oneLine("", "\x1f")},
	{"a byte that is a blank in Latin-1 after it", true, oneLine("", "\xa0")},
	{"a byte that is a blank in Latin-1 before it", true, oneLine("\x85", "")},
	{"bytes that are blanks in Latin-1, in HTTP/1", false, oneLine("\xa0\x85", "\x85 \xa0")},
	{"a blank that is not ASCII", false, oneLine("", "\u00a0")},
	{"a blank of Japanese text", false, oneLine("\u3000", "")},
	{"a byte order mark", false, oneLine("\ufeff", "")},
	{"in a trailer", false, func(key string) []header { return []header{{trailer, key}} }},
	{"in a trailer, and junk in a header", false, func(key string) []header { return []header{{apiKey, "other-than-" + key}, {trailer, key}} }},
	{"in a trailer of HTTP/2", true, func(key string) []header { return []header{{trailer, key}} }},
	{"in a trailer of HTTP/2 with a length", true, func(key string) []header { return []header{{"content-length", "0"}, {trailer, key}} }},
	{"blanks in HTTP/1", false, oneLine("  ", " \t ")},
	{"a vertical tab in HTTP/1", false, oneLine("", "\v")},
	{"junk in a second line", false, twoLines(header{apiKey, "KEY"}, header{apiKey, "JUNK"})},
	{"junk in a first line", false, twoLines(header{apiKey, "JUNK"}, header{apiKey, "KEY"})},
	{"an empty first line", false, twoLines(header{apiKey, ""}, header{apiKey, "KEY"})},
	{"the same line twice", false, twoLines(header{apiKey, "KEY"}, header{apiKey, "KEY"})},
	{"names of another case", false, twoLines(header{"X-API-KEY", "JUNK"}, header{"x-Api-Key", "KEY"})},
	{"bytes that are not UTF-8 in a second line", false, twoLines(header{apiKey, "KEY"}, header{apiKey, "\xff"})},
	{"junk in a second line of HTTP/2", true, twoLines(header{apiKey, "KEY"}, header{apiKey, "JUNK"})},
	{"junk in a first line of HTTP/2", true, twoLines(header{apiKey, "JUNK"}, header{apiKey, "KEY"})},
	{"underscores in the name", false, twoLines(header{"x_api_key", "KEY"}, header{"accept", "*/*"})},
	{"underscores in a second name", false, twoLines(header{apiKey, "JUNK"}, header{"X_Api_Key", "KEY"})},
	{"one underscore in a second name", false, twoLines(header{"x-api_key", "KEY"}, header{apiKey, "JUNK"})},
	{"another underscore in a second name", false, twoLines(header{"X_Api-Key", "KEY"}, header{apiKey, "JUNK"})},
	{"removed by Connection", false, twoLines(header{"Connection", "X-Api-Key"}, header{apiKey, "KEY"})},
	{"removed by the second Connection", false, twoLines(header{apiKey, "KEY"}, header{"Connection", "keep-alive, x-api-key"})},
	{"underscores in a second name of HTTP/2", true, twoLines(header{apiKey, "JUNK"}, header{"x_api_key", "KEY"})},
}

// keysCannotBeRespelled empties the bucket of a key, and then sends the key in each spelling. Requests with
// the key may reach the application only as often as units have refilled.
func (g gateway) keysCannotBeRespelled(t *testing.T) {
	t.Helper()
	if g.http2 != "" {
		if code := g.overHTTP2(t, "/", header{apiKey, "honest"}); code != http.StatusOK {
			t.Fatalf("a request without an attack, over HTTP/2: status %d, want 200", code)
		}
	}
	for i, a := range keyAttacks {
		if a.http2 && g.http2 == "" {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			key := "attacked" + strconv.Itoa(i)
			g := g
			g.client = fmt.Sprintf("127.67.0.%d", i+1) // The address of the client has a limit, too.
			from := time.Now()
			keys := g.keys
			if keys == (bucket{}) {
				keys = perKey
			}
			keys.drain(t, func() answer { return g.http1(t, g.port, "", "/", header{apiKey, key}) })
			passed, tries, lines := 0, keys.capacity+2, []string(nil)
			for range tries {
				g.last.Store(nil)
				code := g.code(t, a, key)
				if code == http.StatusTooManyRequests {
					continue
				}
				got := g.last.Load()
				if got == nil { // the proxy may refuse the request
					break
				}
				if len(got.keys) > 1 {
					lines = got.keys
				}
				for _, line := range got.keys {
					if target.Trim(line) == key {
						passed++
						break
					}
				}
			}
			most := int(time.Since(from)/keys.each) + 1
			switch known := slices.Contains(g.gaps, a.name); {
			case known && passed <= most && lines == nil:
				t.Error("this gap no longer exists: remove it from this list and from the README")
			case known:
			case lines != nil:
				t.Errorf("the application received the keys %q, want one key", lines)
			case passed > most:
				t.Errorf("%d of %d requests reached the application with the key, want at most %d", passed, tries, most)
			}
		})
	}
}

func (g gateway) code(t *testing.T, a keyAttack, key string) int {
	t.Helper()
	if a.http2 {
		return g.overHTTP2(t, "/", a.lines(key)...)
	}
	return g.http1(t, g.port, "", "/", a.lines(key)...).code
}

// queryAttacks are spellings of the query tenant=acme%20KEY.
var queryAttacks = []string{"tenant=acme+KEY", "%74enant=acme%20KEY", "tenan%74=acme+KEY", "tenant=acme%20KEY%20", "tenant=acme%20KEY%0a", "tenant=%61cme%20KEY", "x=y&tenant=acme%20KEY", "x=%26&tenant=acme+KEY"}

// queriesCannotBeRespelled empties the bucket of a tenant, and then sends the tenant in each spelling.
func (g gateway) queriesCannotBeRespelled(t *testing.T, network int) {
	t.Helper()
	for i, attack := range queryAttacks {
		t.Run(attack, func(t *testing.T) {
			key := "q" + strconv.Itoa(i)
			g := g
			g.client = fmt.Sprintf("127.70.%d.%d", network, i+1)
			send := func(query string) answer { return g.http1(t, g.port, "", "/?"+strings.ReplaceAll(query, "KEY", key)) }
			from := time.Now()
			perTenant.drain(t, func() answer { return send("tenant=acme%20KEY") })
			passed := 0
			for range perTenant.capacity {
				g.last.Store(nil)
				send(attack)
				if got := g.last.Load(); got != nil && strings.TrimSpace(got.tenant) == "acme "+key {
					passed++
				}
			}
			if most := int(time.Since(from)/perTenant.each) + 1; passed > most {
				t.Errorf("%d of %d requests reached the application with the tenant, want at most %d", passed, perTenant.capacity, most)
			}
		})
	}
}

// malformed are headers that HTTP forbids but that some proxies accept over HTTP/2. An auth request that a
// proxy makes from them could be malformed too. A proxy that fails open allows a request without a limit if
// its auth request gets no answer.
var malformed = []header{
	{":authority", "shop\x01.test"}, {":authority", "shop\x7f.test"}, {":authority", "shop\t.test"}, {":authority", "shop test"}, {":authority", "\xff"},
	{"host", "shop\x01.test"}, {"host", "shop\x7f.test"}, {"host", "\xff"},
	{apiKey, "key\x01"}, {apiKey, "key\x1f\x7f"}, {apiKey, "\v"}, {apiKey, "a\tb"}, {apiKey, "\xff"},
}

// malformedRequestsAreLimited sends each of malformed more often than its limit allows. The proxy must refuse
// or limit these requests. The proxy must fail open, and the application must accept malformed requests, as
// serveAnything does: otherwise nothing is tested.
func (g gateway) malformedRequestsAreLimited(t *testing.T) {
	t.Helper()
	if code := g.overHTTP2(t, "/"); code != http.StatusOK {
		t.Fatalf("a well-formed request: status %d, want 200", code)
	}
	for i, h := range malformed {
		t.Run(fmt.Sprintf("%q", h), func(t *testing.T) {
			limit, from, passed := perKey, time.Now(), 0
			if h.name != apiKey {
				limit = perTenant
			}
			for range 2 * limit.capacity {
				code := g.overHTTP2(t, fmt.Sprintf("/?tenant=malformed%d", i), h)
				if code == http.StatusOK {
					passed++
				} else if code != http.StatusTooManyRequests {
					t.Logf("the proxy refused the request with status %d", code)
					return
				}
			}
			if most := limit.capacity + int(time.Since(from)/limit.each); passed > most {
				t.Errorf("%d requests were allowed, want at most %d", passed, most)
			}
		})
	}
}

// serveAnything answers 200 to every request, malformed or not, until the test ends.
func serveAnything(t *testing.T, address string) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(maxWait))
				var request []byte
				for buf := make([]byte, 4<<10); !bytes.Contains(request, []byte("\r\n\r\n")); {
					n, err := conn.Read(buf)
					if err != nil {
						return
					}
					request = append(request, buf[:n]...)
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			})
		}
	})
}

// pathAttacks are paths that some application treats as /login.
var pathAttacks = []string{
	"/LOGIN", "/Login?next=1", "/login/", "/login//", "/login;x", "/login;x=1/", "/LOGIN;x/", "/;x/login", "/a;x/..;y/login",
	`/\login`, `\login`, "/%5clogin", "/a%5c..%5clogin", "/login%3bx", "/login/.", "/%4cogin/",
}

// sameApplicationPath returns the path that an application serves if it ignores case, trailing slashes and
// path parameters, and treats backslashes as slashes.
func sameApplicationPath(path string) string {
	return target.Fold(target.Path(path), target.IgnoreCase|target.IgnoreTrailingSlash|target.IgnoreParameters|target.IgnoreBackslash)
}

// pathsCannotBeRespelled sends the five logins that an address may send in a minute, and then one with another
// spelling of the path. network is a part of the client's address that no other test uses.
func (g gateway) pathsCannotBeRespelled(t *testing.T, network int) {
	t.Helper()
	for i, path := range pathAttacks {
		t.Run(path, func(t *testing.T) {
			sameMinute(t, func(attempt int) bool {
				client := fmt.Sprintf("127.66.%d.%d", 100+network, 3*i+attempt)
				for range 5 {
					if g.http1(t, g.port, client, "/login").code != http.StatusOK {
						return false
					}
				}
				g.last.Store(nil)
				code := g.http1(t, g.port, client, path).code
				got := g.last.Load()
				if code == http.StatusOK && got != nil && sameApplicationPath(got.path) == "/login" {
					t.Logf("the application received %q", got.path)
					return false
				}
				return true
			})
		})
	}
}

// connectionAttacks returns headers that make some proxies change a request before they call rlsidecar. For
// example, they remove the headers that Connection names, or treat an upgrade differently.
func connectionAttacks() (attacks [][]header) {
	for _, name := range []string{
		"X-Forwarded-For", "X-Real-IP", "X-Forwarded-Uri", "X-Forwarded-Method", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Original-URI",
		"X-Original-Url", "X-Original-Method", "Forwarded", "Host", "Content-Length", "Authorization",
	} {
		attacks = append(attacks, []header{{"Connection", name}}, []header{{name, "1"}, {"Connection", strings.ToLower(name) + ", close"}})
	}
	return append(attacks,
		[]header{{"Connection", "Upgrade"}, {"Upgrade", "websocket"}, {"Sec-WebSocket-Version", "13"}, {"Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="}},
		[]header{{"Connection", "Upgrade, HTTP2-Settings"}, {"Upgrade", "h2c"}, {"HTTP2-Settings", "AAMAAABkAAQAAP__"}},
		[]header{{"Expect", "100-continue"}, {"Content-Length", "0"}},
		[]header{{"X-HTTP-Method-Override", "OPTIONS"}},
		[]header{{"Accept", strings.Repeat("*/*, ", 1500)}},
		[]header{{"Cookie", strings.Repeat("a=b; ", 1500)}},
		[]header{{"Trailer", "X-Forwarded-For"}, {"TE", "trailers"}},
		[]header{{"Max-Forwards", "0"}},
		[]header{{"Range", "bytes=0-0"}, {"If-None-Match", "*"}},
	)
}

// headersDoNotLiftLimits sends the five logins that an address may send in a minute, and then one with the
// headers of a connection attack. network is a part of the client's address that no other test uses.
func (g gateway) headersDoNotLiftLimits(t *testing.T, network int) {
	t.Helper()
	for i, headers := range connectionAttacks() {
		name := fmt.Sprintf("%.80q", headers)
		t.Run(name, func(t *testing.T) {
			sameMinute(t, func(attempt int) bool {
				client := fmt.Sprintf("127.68.%d.%d", 100+network, 3*i+attempt)
				for range 5 {
					if g.http1(t, g.port, client, "/login").code != http.StatusOK {
						return false
					}
				}
				if code := g.http1(t, g.port, client, "/login", headers...).code; code == http.StatusOK || code == http.StatusSwitchingProtocols {
					t.Logf("the sixth login: status %d, want 429", code)
					return false
				}
				return true
			})
		})
	}
}

// ipv6NetworksAreOneClient sends logins from many addresses of one /64, because one client can own such a
// network.
func (g gateway) ipv6NetworksAreOneClient(t *testing.T) {
	t.Helper()
	login := func(address string) int {
		return g.http1(t, g.proxied, "", "/login", header{"PROXY", address}).code
	}
	sameMinute(t, func(attempt int) bool {
		codes := map[int]int{}
		for i := range 12 {
			codes[login(fmt.Sprintf("2001:db8:%d:7::%x", attempt, i+1))]++
		}
		if codes[http.StatusOK] != 5 || codes[http.StatusTooManyRequests] != 7 {
			t.Logf("12 addresses of one /64: %v, want 5 of 200 and 7 of 429", codes)
			return false
		}
		if code := login(fmt.Sprintf("2001:db8:%d:8::1", attempt)); code != http.StatusOK {
			t.Logf("another /64: status %d, want 200", code)
			return false
		}
		return true
	})
}

// http1 sends GET path over a new connection, byte for byte. from is the client's address; "" means g.client.
// If the first header has the name PROXY, its value is sent as the client's address in a PROXY protocol
// header. The answer is zero if the proxy closes the connection without one.
func (g gateway) http1(t *testing.T, port, from, path string, headers ...header) answer {
	t.Helper()
	var request bytes.Buffer
	if len(headers) > 0 && headers[0].name == "PROXY" {
		fmt.Fprintf(&request, "PROXY TCP6 %s 2001:db8:ffff::1 4711 80\r\n", headers[0].value)
		headers = headers[1:]
	}
	fmt.Fprintf(&request, "GET %s HTTP/1.1\r\nHost: shop.test\r\nConnection: close\r\n", path)
	var after string // the body
	for _, h := range headers {
		if h.name == trailer {
			after = "1\r\nx\r\n0\r\n" + apiKey + ": " + h.value + "\r\n\r\n"
			h = header{"Transfer-Encoding", "chunked"}
		}
		fmt.Fprintf(&request, "%s: %s\r\n", h.name, h.value)
	}
	request.WriteString("\r\n" + after)
	conn := g.dial(t, port, from)
	defer conn.Close()
	if _, err := conn.Write(request.Bytes()); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Logf("%q: no answer: %v", request.String(), err)
		return answer{}
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body) // the status is enough; the rest of the answer may be missing
	return answer{resp.StatusCode, resp.Header, string(body)}
}

func (g gateway) dial(t *testing.T, port, from string) net.Conn {
	t.Helper()
	if from == "" {
		from = g.client
	}
	var dialer net.Dialer
	if from != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	ctx, cancel := context.WithTimeout(t.Context(), maxWait)
	defer cancel()
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(g.addr, port))
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(maxWait))
	return conn
}

// overHTTP2 sends GET path over HTTP/2, with values that Go's net/http client refuses to send. It returns the
// status, or 0 if the proxy refused the stream or the connection.
func (g gateway) overHTTP2(t *testing.T, path string, headers ...header) int {
	t.Helper()
	conn := g.dial(t, g.http2, "")
	defer conn.Close()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	pseudo := []header{{":method", "GET"}, {":scheme", "http"}, {":path", path}}
	if len(headers) == 0 || headers[0].name != ":authority" && headers[0].name != "host" {
		pseudo = append(pseudo, header{":authority", "shop.test"})
	}
	var after string // the key in a trailer
	for _, h := range append(pseudo, headers...) {
		if h.name == trailer {
			after = h.value
			continue
		}
		if err := encoder.WriteField(hpack.HeaderField{Name: strings.ToLower(h.name), Value: h.value}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := errors.Join(framer.WriteSettings(), framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 1, BlockFragment: block.Bytes(), EndStream: after == "", EndHeaders: true,
	})); err != nil {
		t.Fatal(err)
	}
	if after != "" {
		block.Reset()
		if err := errors.Join(encoder.WriteField(hpack.HeaderField{Name: apiKey, Value: after}), framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true,
		})); err != nil {
			t.Fatal(err)
		}
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return 0
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = framer.WriteSettingsAck() // the next read reports an error
			}
		case *http2.MetaHeadersFrame:
			code, err := strconv.Atoi(frame.PseudoValue("status"))
			if err != nil {
				t.Fatal(err)
			}
			return code
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return 0
		}
	}
}
