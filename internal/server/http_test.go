package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
)

func TestTheFirstRequestIsAnsweredAfterThePortIsClosed(t *testing.T) {
	t.Parallel()
	for _, proxyProtocol := range []bool{false, true} { // with the PROXY protocol, net/http has connections of another type
		t.Run(fmt.Sprintf("PROXY protocol %t", proxyProtocol), func(t *testing.T) {
			t.Parallel()
			x := start(t, shared, func(c *Config) { c.HTTPProxyProtocol = proxyProtocol })
			answer := func(c net.Conn) {
				t.Helper()
				if _, err := io.WriteString(c, requestStart+"\r\n"); err != nil {
					t.Fatal(err)
				}
				if got := answerOn(t, bufio.NewReader(c)); got.StatusCode != http.StatusOK {
					t.Errorf("got %s, want 200", got.Status)
				}
			}
			first := connect(t, x.HTTP)
			answer(connect(t, x.HTTP)) // connections are accepted in order, so first is accepted too
			ended := make(chan error, 1)
			go func() { ended <- x.stop() }()
			eventually(t, "the port is closed", func() bool {
				c, err := net.Dial("tcp", x.HTTP.String())
				if err == nil {
					c.Close()
				}
				return err != nil
			})
			answer(first)
			if err := <-ended; err != nil {
				t.Error(fmt.Errorf("stop: %w", err))
			}
		})
	}
}
