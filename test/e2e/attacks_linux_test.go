package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// The tables of this file list requests that a client could send to avoid its limit. The functions below send
// them through a proxy and check that the limit still applies.

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

// keysCannotBeRespelled sends a key in each spelling, before and after honest requests have emptied its bucket. No more
// requests with the key may reach the application than the limit allows. gaps names the attacks that are known to
// succeed.
func (s *stack) keysCannotBeRespelled(t *testing.T, gaps ...string) {
	t.Helper()
	if s.http2 != "" {
		if code := s.overHTTP2(t, "", "/", header{apiKey, "honest"}); code != http.StatusOK {
			t.Fatalf("a request without an attack, over HTTP/2: status %d, want 200", code)
		}
	}
	for i, a := range keyAttacks {
		if a.http2 && s.http2 == "" {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			key := "attacked" + strconv.Itoa(i)
			client := fmt.Sprintf("127.67.0.%d", i+1) // The address of the client has a limit, too.
			from, several := time.Now(), []string(nil)
			attack := func(n int) {
				for range n {
					s.last.Store(nil)
					var code int
					if a.http2 {
						code = s.overHTTP2(t, client, "/", a.lines(key)...)
					} else {
						code = s.http1(t, s.port, client, "/", a.lines(key)...).code
					}
					got := s.last.Load()
					if got == nil && code != http.StatusTooManyRequests {
						return // the proxy refuses the request, and would refuse it again
					}
					if got != nil && len(got.keys) > 1 {
						several = got.keys
					}
				}
			}
			attack(2)
			for denied := false; !denied; {
				a := s.http1(t, s.port, client, "/", header{apiKey, key})
				if denied = a.code == http.StatusTooManyRequests; !denied && s.countOf("key "+key) > s.keys.mostIn(from)+5 {
					t.Fatalf("after %d requests with the key none is denied", s.countOf("key "+key))
				}
			}
			attack(s.keys.capacity + 2)
			passed, most := s.countOf("key "+key), s.keys.mostIn(from)
			switch known := slices.Contains(gaps, a.name); {
			case known && passed <= most && several == nil:
				t.Error("this gap no longer exists: remove it from this list and from the README")
			case known:
			case several != nil:
				t.Errorf("the application received the keys %q, want one key", several)
			case passed > most:
				t.Errorf("%d requests reached the application with the key, want at most %d", passed, most)
			}
		})
	}
}

// queryAttacks are spellings of the query tenant=acme%20KEY.
var queryAttacks = []string{"tenant=acme+KEY", "%74enant=acme%20KEY", "tenan%74=acme+KEY", "tenant=acme%20KEY%20", "tenant=acme%20KEY%0a", "tenant=%61cme%20KEY", "x=y&tenant=acme%20KEY", "x=%26&tenant=acme+KEY"}

// queriesCannotBeRespelled sends a tenant in each spelling, before and after honest requests have emptied its bucket.
func (s *stack) queriesCannotBeRespelled(t *testing.T) {
	t.Helper()
	for i, attack := range queryAttacks {
		key := "q" + strconv.Itoa(i)
		client := fmt.Sprintf("127.70.0.%d", i+1)
		from := time.Now()
		for _, query := range slices.Concat([]string{attack, attack}, slices.Repeat([]string{"tenant=acme%20KEY"}, perTenant.capacity), slices.Repeat([]string{attack}, 5)) {
			s.http1(t, s.port, client, "/?"+strings.ReplaceAll(query, "KEY", key))
		}
		if passed, most := s.countOf("tenant acme "+key), perTenant.mostIn(from); passed > most {
			t.Errorf("%s: %d requests reached the application with the tenant, want at most %d", attack, passed, most)
		}
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
func (s *stack) malformedRequestsAreLimited(t *testing.T) {
	t.Helper()
	if code := s.overHTTP2(t, "", "/"); code != http.StatusOK {
		t.Fatalf("a well-formed request: status %d, want 200", code)
	}
	for i, h := range malformed {
		t.Run(fmt.Sprintf("%q", h), func(t *testing.T) {
			limit, from, passed := perKey, time.Now(), 0
			if h.name != apiKey {
				limit = perTenant
			}
			for range 2 * limit.capacity {
				code := s.overHTTP2(t, "", fmt.Sprintf("/?tenant=malformed%d", i), h)
				if code == http.StatusOK {
					passed++
				} else if code != http.StatusTooManyRequests {
					t.Logf("the proxy refused the request with status %d", code)
					return
				}
			}
			if most := limit.mostIn(from); passed > most {
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
	"/login", "/login?next=1", "//login", "/x/../login", "/./login", "/%6cogin", "/x/%2e%2e/login", "/../../login", "/login#x", "/login?a=b#c",
	"http://shop.test/login", "/nginx/../login", "/json/../../login",
	"/LOGIN", "/Login?next=1", "/login/", "/login//", "/login;x", "/login;x=1/", "/LOGIN;x/", "/;x/login", "/a;x/..;y/login",
	`/\login`, `\login`, "/%5clogin", "/a%5c..%5clogin", "/login%3bx", "/login/.", "/%4cogin/",
}

// forged are headers with which a client could claim another address or another path.
var forged = []header{{"X-Real-IP", "9.9.9.9"}, {"X-Forwarded-For", "9.9.9.9"}, {"X-Original-URI", "/"}, {"X-Forwarded-Uri", "/"}, {"X-Original-Method", "PUT"}, {"X-Forwarded-Method", "PUT"}}

// loginsCannotBeDisguised sends logins of one address in each spelling of the path and with each list of headers, before
// and after honest logins. Exactly five of them in a minute may reach the application.
func (s *stack) loginsCannotBeDisguised(t *testing.T) {
	t.Helper()
	type login struct {
		path    string
		headers []header
	}
	for name, attacks := range map[string][]login{"paths": nil, "headers": nil} {
		for _, path := range pathAttacks {
			if name == "paths" {
				attacks = append(attacks, login{path, forged})
			}
		}
		for _, headers := range connectionAttacks() {
			if name == "headers" {
				attacks = append(attacks, login{"/login", headers})
			}
		}
		t.Run(name, func(t *testing.T) {
			client := ""
			sameMinute(t, func(attempt int) bool {
				client = fmt.Sprintf("127.66.%d.%d", len(name), attempt+1)
				mark := header{attackHeader, name + strconv.Itoa(attempt)}
				for _, one := range slices.Concat(attacks, slices.Repeat([]login{{"/login", nil}}, 5), attacks) {
					before := s.countOf("login " + mark.value)
					s.http1(t, s.port, client, one.path, append([]header{mark}, one.headers...)...)
					if n := s.countOf("login " + mark.value); n > 5 && n > before {
						t.Logf("login %d reached the application: %s %.80q", n, one.path, one.headers)
					}
				}
				return s.countOf("login "+mark.value) == 5
			})
			if code := s.get(t, fmt.Sprintf("127.66.%d.99", len(name)), "/login").code; code != http.StatusOK {
				t.Errorf("another address: status %d, want 200", code)
			}
			if code := s.get(t, client, "/").code; code != http.StatusOK {
				t.Errorf("another path: status %d, want 200", code)
			}
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
		[]header{{"Connection", "X-Forwarded-For, X-Forwarded-Uri, X-Forwarded-Method, X-Original-URI, X-Real-IP"}},
	)
}

// ipv6NetworksAreOneClient sends logins from many addresses of one /64, because one client can own such a
// network.
func (s *stack) ipv6NetworksAreOneClient(t *testing.T) {
	t.Helper()
	login := func(address string) int {
		return s.http1(t, s.proxied, "", "/login", header{"PROXY", address}).code
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

// http1 sends GET path over a new connection, byte for byte. from is the client's address; "" means any. If the first
// header has the name PROXY, its value is sent as the client's address in a PROXY protocol header. The answer is zero if
// the proxy closes the connection without one.
func (s *stack) http1(t *testing.T, port, from, path string, headers ...header) answer {
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
	a, err := s.try(t, from, port, request.String()+"\r\n"+after)
	if err != nil {
		t.Logf("%q: no answer: %v", request.String(), err)
	}
	return a
}

// startHTTP2 sends what a client of HTTP/2 sends first. If the server has ended the connection, the next read fails.
func startHTTP2(conn io.ReadWriter, settings ...http2.Setting) *http2.Framer {
	_, _ = io.WriteString(conn, http2.ClientPreface)
	framer := http2.NewFramer(conn, conn)
	_ = framer.WriteSettings(settings...)
	return framer
}

// startStream sends the headers of a request. end means that the request has no body. The headers are encoded without
// those of earlier requests, and may be malformed.
func startStream(to *http2.Framer, id uint32, end bool, headers ...header) {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, h := range headers {
		_ = encoder.WriteField(hpack.HeaderField{Name: strings.ToLower(h.name), Value: h.value}) // cannot fail, because it writes to memory
	}
	_ = to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: end, EndHeaders: true})
}

// overHTTP2 sends GET path over HTTP/2, with values that Go's net/http client refuses to send. It returns the
// status, or 0 if the proxy refused the stream or the connection.
func (s *stack) overHTTP2(t *testing.T, from, path string, headers ...header) int {
	t.Helper()
	conn := dialFrom(t, from, net.JoinHostPort(s.addr, s.http2))
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(maxWait))
	pseudo := []header{{":method", "GET"}, {":scheme", "http"}, {":path", path}}
	if len(headers) == 0 || headers[0].name != ":authority" && headers[0].name != "host" {
		pseudo = append(pseudo, header{":authority", "shop.test"})
	}
	var after string // the key in a trailer
	all := slices.DeleteFunc(append(pseudo, headers...), func(h header) bool {
		if h.name == trailer {
			after = h.value
		}
		return h.name == trailer
	})
	framer := startHTTP2(conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	startStream(framer, 1, after == "", all...)
	if after != "" {
		startStream(framer, 1, true, header{apiKey, after})
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

// marker is part of all values in hostile requests. No answer may contain it.
const marker = "zq7injected"

// hostileRequestsAreLimited sends requests that could make rlsidecar answer with an error. A proxy that can fail open
// should do so in this test, because then such an error lets a request avoid its limit. The application must accept
// malformed requests, as serveAnything does. tenants reports whether the recipe limits the parameter tenant.
func (s *stack) hostileRequestsAreLimited(t *testing.T, tenants bool) {
	t.Helper()
	get := func(path string, headers ...string) string {
		return strings.Join(append([]string{"GET " + path + " HTTP/1.1", "Host: shop.test", "Connection: close"}, headers...), "\r\n") + "\r\n\r\n"
	}
	host := func(name string) string {
		return "GET / HTTP/1.1\r\nHost: " + name + "\r\nConnection: close\r\nX-Api-Key: " + marker + fmt.Sprintf("%x", name) + "\r\n\r\n"
	}
	for name, request := range map[string]string{
		"a key that is not UTF-8": get("/", "X-Api-Key: "+marker+"\xff"),
		"a key of UTF-8":          get("/", "X-Api-Key: "+marker+"ключ"),
		"a cut-off rune":          get("/", "X-Api-Key: "+marker+"\xe2\x82"),
		"a surrogate":             get("/", "X-Api-Key: "+marker+"\xed\xa0\x80"),
		"control bytes":           get("/", "X-Api-Key: "+marker+"\x01\x1b[31m\x7f"),
		"a key that contains the name of another entry": get("/", "X-Api-Key: "+marker+",remote_address=1.2.3.4_api_key"),
		"a key of 16 KiB":                         get("/", "X-Api-Key: "+marker+strings.Repeat("x", 16<<10)),
		"CR LF in a path":                         get("/%0d%0aX-Api-Key:%20x", "X-Api-Key: "+marker+"crlf"),
		"a target of 16 KiB":                      get("/"+strings.Repeat("x", 16<<10), "X-Api-Key: "+marker+"long"),
		"dots":                                    get("/a//b/../../v1/auth/../x", "X-Api-Key: "+marker+"dots"),
		"a malformed host":                        host("a\"b<c>"),
		"a host that is not UTF-8":                host("\xff"),
		"a control byte in the host":              host("a\x01b"),
		"a delete byte in the host":               host("a\x7fb"),
		"a tab in the host":                       host("a\tb"),
		"forged headers of an auth request":       get("/", "X-Api-Key: "+marker+"head", "X-Real-IP: 9.9.9.9", "X-Forwarded-For: 9.9.9.9", "X-Original-URI: /", "X-Forwarded-Uri: /", "X-Forwarded-Host: a,b"),
		"query: CR LF":                            get("/?tenant=" + marker + "%0d%0aX-Injected:%20yes%0d%0a%0d%0a"),
		"query: ampersands and equals signs":      get("/?a=b&tenant=" + marker + "%26tenant%3Dx&b=2"),
		"query: an escaped name":                  get("/?a=b&%74enant=" + marker + "%26tenant%3dy&b=2"),
		"query: escaped bytes that are not UTF-8": get("/?tenant=" + marker + "%ff%fe%00%7f"),
		"query: raw bytes that are not UTF-8":     get("/?tenant=" + marker + "\xff\xfe"),
	} {
		limit := perKey
		if strings.HasPrefix(name, "query") {
			if limit = perTenant; !tenants {
				continue
			}
		}
		t.Run(name, func(t *testing.T) {
			codes, from := map[int]int{}, time.Now()
			for range 2 * limit.capacity {
				a := s.do(t, "", request)
				if codes[a.code]++; strings.Contains(a.raw, marker) {
					t.Fatalf("the answer contains bytes of the request:\n%.500q", a.raw)
				}
			}
			refused := codes[400] + codes[414] + codes[431] + codes[501] // by the proxy itself
			if most := limit.mostIn(from); refused < 2*limit.capacity && (refused > 0 || codes[200] < limit.capacity || codes[200] > most || codes[200]+codes[429] < 2*limit.capacity) {
				t.Errorf("got the statuses %v; want that the proxy refuses each request, or allows %d to %d of them", codes, limit.capacity, most)
			}
		})
	}
	if a := s.key(t, marker)(); a.code != 200 { // each value had a bucket of its own
		t.Errorf("a key that none of the requests above sent: status %d, want 200", a.code)
	}
}

// everyHeaderSizeIsLimited sends keys and paths from 1 KiB to 600 KiB. If the proxy accepts one, it must fit into the
// request for a decision. An allowed answer without the header named proof was not limited.
func (s *stack) everyHeaderSizeIsLimited(t *testing.T, proof string) {
	t.Helper()
	for n := 1 << 10; n < 600<<10; n += n/64 + 1 {
		big := strings.Repeat("x", n)
		for _, request := range []string{
			"GET /?tenant=big HTTP/1.1\r\nHost: shop.test\r\nConnection: close\r\nX-Api-Key: " + big + "\r\n\r\n",
			"GET /" + big + " HTTP/1.1\r\nHost: shop.test\r\nConnection: close\r\n\r\n",
		} {
			a, err := s.try(t, "", s.port, request)
			if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
				continue // the proxy refused the request before it had read all of it
			}
			if err != nil || a.code < 400 && a.header.Get(proof) == "" {
				t.Errorf("%d bytes: got %v %d %v; want an error status or the header %s", n, err, a.code, a.header, proof)
			}
		}
	}
}
