package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"unicode"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/rlsidecar/rlsidecar/internal/listen"
)

// ErrNotReady is the cause of the errors of CheckHTTP and CheckGRPC for a server that is not ready, or no longer
// ready.
var ErrNotReady = errors.New("not ready")

// CheckHTTP checks whether the server whose HTTP listener is at address is ready. address has the form of
// Config.HTTP. CheckHTTP returns an error that wraps ErrNotReady if the server is not ready. It returns another error
// if a listener of another kind answers, or if there is no answer before ctx ends.
func CheckHTTP(ctx context.Context, address string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/readyz", nil)
	if err != nil {
		return err
	}
	answer, err := Client(address).Do(r)
	if err != nil {
		return fmt.Errorf("check %s: %w", address, err)
	}
	defer answer.Body.Close()
	why, _ := io.ReadAll(io.LimitReader(answer.Body, 2<<10))
	switch answer.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusServiceUnavailable:
		if text := strings.TrimSpace(string(why)); text != "" {
			return fmt.Errorf("%w: %s", ErrNotReady, strings.Map(printable, text))
		}
		return ErrNotReady
	default:
		return fmt.Errorf("check %s: the answer is %s; is this rlsidecar's HTTP listener? (--http-listen)", address, answer.Status)
	}
}

func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return ' '
}

// Client returns an HTTP client that connects to the server at address and ignores the host in a request's
// URL. address has the form of Config.HTTP and Config.Admin. The client uses no proxy, follows no redirect
// and keeps no connection.
func Client(address string) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return reach(ctx, address) },
			DisableKeepAlives: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// CheckGRPC does what CheckHTTP does, for the gRPC listener at address, over TLS if secure is true. It has no client
// certificate, so a server that requires one rejects the connection.
func CheckGRPC(ctx context.Context, address string, secure bool) error {
	transport := insecure.NewCredentials()
	if secure {
		// The address is on this machine, so verifying the certificate would prove nothing more.
		transport = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	}
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(transport), grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return reach(ctx, address) }))
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	switch {
	case err != nil:
		return fmt.Errorf("check %s: %w", address, err)
	case answer.GetStatus() != healthpb.HealthCheckResponse_SERVING:
		return ErrNotReady
	default:
		return nil
	}
}

// reach connects to the listener at address. If the listener listens on all addresses of the machine, reach
// dials the loopback address.
func reach(ctx context.Context, address string) (net.Conn, error) {
	if path, isUnix := strings.CutPrefix(address, listen.UnixScheme); isUnix {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}
