package server

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

func TestSlowClientsAreCutOff(t *testing.T) {
	t.Parallel()
	x := start(t, "domain: d\nauth: {default: allow}")
	open := func(send string) net.Conn {
		conn := connect(t, x.HTTP)
		_, _ = io.WriteString(conn, send) // the server may have closed the connection
		return conn
	}
	const head = "GET /v1/auth HTTP/1.1\r\nHost: h\r\n"
	slow := map[string]net.Conn{
		"sends nothing":    open(""),
		"stops in a line":  open("GET /v1/au"),
		"ends no header":   open(head + "X-A: b\r\n"),
		"drips its header": open(head),
	}
	for range 200 {
		open(head)
	}
	go func() { // until the server closes the connection
		for conn := slow["drips its header"]; ; time.Sleep(500 * time.Millisecond) {
			if _, err := io.WriteString(conn, "X-A: b\r\n"); err != nil {
				return
			}
		}
	}()
	for name, want := range map[string]struct {
		send string
		code int
	}{
		"a body that never comes": {"POST /v1/auth HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n", 200},
		"a client that waits":     {"POST /v1/auth HTTP/1.1\r\nHost: h\r\nContent-Length: 7\r\nExpect: 100-continue\r\n\r\n", 200},
		"chunks that never come":  {"POST /v1/auth HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", 200},
		"a header without end":    {head + "X-A: " + strings.Repeat("x", 1<<20), 431},
		"a line without end":      {strings.Repeat("G", 1<<20), 431},
		"a body of 100 GB":        {"POST /v1/limit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n" + strings.Repeat(" ", 100<<10), 413},
		"a body without end": {"POST /v1/limit HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" +
			strings.Repeat("1000\r\n"+strings.Repeat(" ", 4096)+"\r\n", 64), 413},
		"JSON of 60,000 levels": {"POST /v1/limit HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 60000\r\n\r\n" +
			strings.Repeat("[", 60_000), 400},
	} {
		conn := open(want.send)
		_ = conn.SetReadDeadline(time.Now().Add(4 * time.Second)) // before any timeout of the server
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != want.code {
			t.Errorf("%s: got %v %v; want no error and status %v", name, resp, err, want.code)
			continue
		}
		resp.Body.Close()
		if !resp.Close {
			t.Errorf("%s: the connection is kept; want close", name)
		}
	}
	if got := get(t, x.HTTP, "/v1/auth").StatusCode; got != 200 {
		t.Errorf("another client got %d; want 200", got)
	}
	for name, conn := range slow {
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection is still open after 20 s; want it closed", name)
		}
	}
}
