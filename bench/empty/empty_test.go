package empty_test

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/rlsidecar/rlsidecar/bench/empty"
	"github.com/rlsidecar/rlsidecar/bench/load"
)

// TestEveryRequestIsAnswered sends 50,000 requests. Their answers need several times the initial window of a connection.
func TestEveryRequestIsAnswered(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- empty.Serve(listener) }()
	r, err := load.Run(t.Context(), load.Config{
		Target: listener.Addr().String(), Keys: 100, Connections: 2, Outstanding: 100, Requests: 50_000,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.OK != 50_000 || r.Failed() > 0 {
		t.Errorf("got %v; want 50000 allowed answers and no failure", &r)
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
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithNoProxy(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := conn.Invoke(ctx, "/other.Service/Method", &emptypb.Empty{}, &emptypb.Empty{}); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v; want the connection to be closed", err)
	}
}

func TestConnectionsWithoutHTTP2AreClosed(t *testing.T) {
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
		t.Errorf("read %d bytes, %v; want the connection to be closed", n, err)
	}
}
