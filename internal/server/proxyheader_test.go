package server

import (
	"io"
	"net"
	"testing"

	"github.com/pires/go-proxyproto"
)

// FuzzProxyHeader sends random first bytes on a connection. The address of the client must be that of the
// peer, or that of a TCP client in the header of a trusted proxy. All bytes after the header must reach the
// application.
func FuzzProxyHeader(f *testing.F) {
	f.Add([]byte("PROXY TCP4 192.0.2.7 10.0.0.1 1 2\r\nGET"))
	f.Add([]byte("PROXY UNKNOWN\r\nGET"))
	f.Add([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x07\x0a\x00\x00\x01\x00\x01\x00\x02GET"))
	f.Add([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x31\x00\xd8" + string(make([]byte, 216))))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, start []byte) {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = theirs.Write(start)
			theirs.Close()
		}()
		c := proxyproto.NewConn(ours, proxyproto.WithPolicy(proxyproto.USE), proxyproto.ValidateHeader(checkProxyHeader))
		defer c.Close()
		rest, err := io.ReadAll(c)
		if addr := c.RemoteAddr(); addr != ours.RemoteAddr() && err == nil {
			if _, isTCP := addr.(*net.TCPAddr); !isTCP {
				t.Errorf("%q: the client is at %T %s; want a TCP address, or that of the peer", start, addr, addr)
			}
		}
		if len(rest) > len(start) || string(rest) != string(start[len(start)-len(rest):]) {
			t.Errorf("%q: the application reads %q; want the end of what was sent", start, rest)
		}
	})
}
