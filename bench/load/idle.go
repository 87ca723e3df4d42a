package load

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"time"

	"golang.org/x/net/http2"
)

// Idle opens n connections. protocol is "grpc" or "http". If used is true, Idle sends a request on each. If it has
// sent anything, it waits for the first bytes from the server. The caller closes the connections.
func Idle(ctx context.Context, target, protocol string, n int, used bool) (connections []net.Conn, err error) {
	var hello []byte
	switch protocol {
	case "grpc":
		hello, err = grpcHello(used)
	case "http":
		if used {
			hello = []byte("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
		}
	default:
		err = fmt.Errorf("protocol must be grpc or http, but is %q", protocol)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			for _, c := range connections {
				_ = c.Close()
			}
		}
	}()
	answer := make([]byte, 4096)
	for range n {
		c, err := Dial(ctx, target)
		if err != nil {
			return connections, err
		}
		connections = append(connections, c)
		if len(hello) == 0 {
			continue
		}
		_ = c.SetDeadline(time.Now().Add(answerTimeout))
		if _, err := c.Write(hello); err != nil {
			return connections, err
		}
		if _, err := c.Read(answer); err != nil {
			return connections, err
		}
	}
	return connections, nil
}

func grpcHello(used bool) ([]byte, error) {
	req, err := newRequest("bench", []string{"user_id=1"})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	to := http2.NewFramer(&b, nil)
	_ = to.WriteSettings() // cannot fail, like the calls below, because it writes to memory
	if used {
		n := len(req.message)
		_ = to.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: floodHeaders(time.Second)[0], EndHeaders: true})
		_ = to.WriteData(1, true, req.clone(0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n)).message)
	}
	return b.Bytes(), nil
}
