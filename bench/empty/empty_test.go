package empty_test

import (
	"net"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/bench/empty"
	"github.com/rlsidecar/rlsidecar/bench/load"
)

// The server must answer the clients that measure with it: one that writes many frames at once, grpc-go, and one whose
// window is full while requests are unanswered.
func TestEveryRequestIsAnswered(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- empty.Serve(listener) }()
	for _, client := range []string{load.GRPC, load.Raw} {
		r, err := load.Run(t.Context(), load.Config{
			Target: listener.Addr().String(), Client: client, Keys: 100, Connections: 2, Outstanding: 100, Requests: 50_000,
		})
		if err != nil {
			t.Fatal(err)
		}
		if r.OK != 50_000 || r.Failed() > 0 {
			t.Errorf("got %v; want 50000 allowed answers and no failure", &r)
		}
	}
	listener.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestConnectionsThatCallOtherMethodsAreClosed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() { _ = empty.Serve(listener) }()
	nc, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n....")); err != nil {
		t.Fatal(err)
	}
	_ = nc.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := nc.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("answered %d bytes, %v", n, err)
	}
}
