package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
)

// exchangeRaw sends text on a new connection and returns the answer.
func exchangeRaw(tb testing.TB, a net.Addr, text string) *http.Response {
	tb.Helper()
	nc := connect(tb, a)
	go io.WriteString(nc, text) //nolint:errcheck // the server may refuse the request before it has read everything
	return answerOn(tb, bufio.NewReader(nc))
}

func answerOn(tb testing.TB, from *bufio.Reader) *http.Response {
	tb.Helper()
	r, err := http.ReadResponse(from, nil)
	if err != nil {
		tb.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, r.Body)
	r.Body.Close()
	return r
}

const requestStart = "GET /livez HTTP/1.1\r\nHost: localhost\r\n"

// lines returns a request with n header lines.
func linesOf(n int, value string) string {
	var b strings.Builder
	b.WriteString(requestStart)
	for i := range n - 1 {
		fmt.Fprintf(&b, "x%d: %s\r\n", i, value)
	}
	return b.String() + "\r\n"
}

// bytesOf returns a request with n bytes.
func bytesOf(n int) string {
	return requestStart + "Cookie: a=" + strings.Repeat("x", n-len(requestStart)-len("Cookie: a=")-4) + "\r\n\r\n"
}

func TestHeadersAreBounded(t *testing.T) {
	t.Parallel()
	x := start(t, admitAll, func(c *Config) { c.Metrics, c.MetricsPath = "127.0.0.1:0", "/livez" })
	folded := requestStart + "x: a\r\n" + strings.Repeat(" b\r\n", 10_000) + "\r\n"
	for name, c := range map[string]struct {
		request string
		refused bool
	}{
		"256 lines":              {linesOf(256, "v"), false},
		"256 long lines":         {linesOf(256, strings.Repeat("v", 240)), false},
		"257 lines":              {linesOf(257, "v"), true},
		"257 long lines":         {linesOf(257, strings.Repeat("v", 240)), true},
		"tiny lines":             {linesOf(13_000, ""), true},
		"tiny lines without end": {requestStart + strings.Repeat("x:\r\n", 1<<20), true},
		"one name":               {requestStart + strings.Repeat("x:\r\n", 257) + "\r\n", true},
		"folded lines":           {folded, true},
		"64 KiB":                 {bytesOf(64 << 10), false},
		"64 KiB and a byte":      {bytesOf(64<<10 + 1), true},
		"a cookie of 40,000":     {bytesOf(40_000), false},
		"a long request target":  {"GET /livez?" + strings.Repeat("x", 64<<10) + " HTTP/1.1\r\nHost: localhost\r\n\r\n", true},
	} {
		for listener, a := range map[string]net.Addr{"http": x.HTTP, "admin": x.Admin, "metrics": x.Metrics} {
			r := exchangeRaw(t, a, c.request)
			if refused := r.StatusCode == http.StatusRequestHeaderFieldsTooLarge; refused != c.refused || refused && !r.Close {
				t.Errorf("%s to %s: status %d, closes the connection: %t; want 431 and a closed connection: %t", name, listener, r.StatusCode, r.Close, c.refused)
			}
		}
	}
}

// The lines of a body, and of requests that arrive together, are not lines of one header. The last header is bounded too.
func TestOnlyLinesOfTheHeaderCount(t *testing.T) {
	t.Parallel()
	x := start(t, admitAll)
	nc := connect(t, x.HTTP)
	get := requestStart + "\r\n"
	body := "{" + strings.Repeat("\n", 30_000) + "}"
	post := fmt.Sprintf("POST /v1/limit HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	chunked := fmt.Sprintf("POST /v1/limit HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	sent := strings.Repeat(strings.Repeat(get, 300)+post+post+chunked+get+chunked, 3)
	go io.WriteString(nc, sent+linesOf(256, "v")+linesOf(257, "v")) //nolint:errcheck // the test notices that an answer is missing
	from := bufio.NewReader(nc)
	for i := range 3 * (300 + 5) {
		want := http.StatusOK
		if n := i % 305; n >= 300 && n != 303 {
			want = http.StatusBadRequest // the body names no limit
		}
		if r := answerOn(t, from); r.StatusCode != want {
			t.Fatalf("answer %d: status %d; want %d", i, r.StatusCode, want)
		}
	}
	for _, want := range []int{http.StatusOK, http.StatusRequestHeaderFieldsTooLarge} {
		if r := answerOn(t, from); r.StatusCode != want {
			t.Errorf("the last headers: status %d; want %d", r.StatusCode, want)
		}
	}
}

// A header of tiny lines must not need more memory than the buffers of a connection. Before there was a bound for lines,
// a request allocated 10 MiB.
func TestAHeaderOfTinyLinesNeedsLittleMemory(t *testing.T) {
	x := start(t, admitAll)
	var hostile strings.Builder
	hostile.WriteString(requestStart)
	for i := 0; hostile.Len() < 128<<10-10; i++ {
		fmt.Fprintf(&hostile, "%x:\n", i)
	}
	text := hostile.String() + "\r\n"
	const requests = 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range requests {
		exchangeRaw(t, x.HTTP, text)
	}
	runtime.ReadMemStats(&after)
	const bound = 512 << 10
	if each := (after.TotalAlloc - before.TotalAlloc) / requests; each > bound {
		t.Errorf("a request allocated %d KiB; want at most %d", each>>10, bound>>10)
	} else {
		t.Logf("a request allocated %d KiB, with the client's part", each>>10)
	}
}
