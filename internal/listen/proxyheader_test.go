package listen

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/pires/go-proxyproto"
)

// FuzzProxyHeader sends random first bytes on a connection from a trusted proxy. A malformed header, and one of a
// connection that is not TCP, must be an error. Otherwise the client's address must be the source in the header, or that
// of the peer if there is no header or it names no client. The application must read exactly the bytes after the header.
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

		sent := bufio.NewReader(bytes.NewReader(start))
		header, wrong := proxyproto.Read(sent)
		want := ours.RemoteAddr()
		switch {
		case errors.Is(wrong, proxyproto.ErrNoProxyProtocol):
			wrong = nil
		case wrong == nil && header.Command.IsProxy() && header.SourceAddr != nil:
			want = header.SourceAddr
			if _, isTCP := want.(*net.TCPAddr); !isTCP {
				want, wrong = ours.RemoteAddr(), errors.New("not TCP")
			}
		}
		after, _ := io.ReadAll(sent)
		if wrong != nil {
			after = nil
		}
		if addr := c.RemoteAddr(); (err != nil) != (wrong != nil) || addr.String() != want.String() || addr.Network() != want.Network() {
			t.Errorf("%q: the client is at %T %s, error %v; want %T %s, error %v", start, addr, addr, err, want, want, wrong)
		}
		if !bytes.Equal(rest, after) {
			t.Errorf("%q: the application reads %q; want %q", start, rest, after)
		}
	})
}
