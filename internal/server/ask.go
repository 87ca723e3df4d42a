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
)

// ErrNotReady is the answer of a server that takes no requests, or not any more.
var ErrNotReady = errors.New("not ready")

// AskHTTP asks the server whose HTTP door is at address, in a form that Config.HTTP takes, whether
// it is ready. The error is ErrNotReady, or says why there was no answer until ctx ended.
func AskHTTP(ctx context.Context, address string) error {
	client := Client(address)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/readyz", nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return fmt.Errorf("ask %s: %w", address, err)
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
		return fmt.Errorf("ask %s: it answers %s; is this rlsidecar's HTTP port?", address, answer.Status)
	}
}

// printable is r, or a space where a terminal would not show it.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return ' '
}

// Client is an HTTP client of the server at address, in a form that Config.HTTP and Config.Admin take,
// whatever host it is asked for. It asks no proxy, follows no redirect and keeps no connection.
func Client(address string) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return reach(ctx, address) },
			DisableKeepAlives: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// AskGRPC asks at the gRPC door, by TLS if secure. It shows no certificate of its own, so that a
// server that wants one turns it away.
func AskGRPC(ctx context.Context, address string, secure bool) error {
	transport := insecure.NewCredentials()
	if secure {
		// Whoever has this address here is the server: its name, or who signed it, tells nothing more.
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
		return fmt.Errorf("ask %s: %w", address, err)
	case answer.GetStatus() != healthpb.HealthCheckResponse_SERVING:
		return ErrNotReady
	default:
		return nil
	}
}

// reach connects to what listens at address. All addresses of a machine, as a server listens on them, are
// dialed as its own.
func reach(ctx context.Context, address string) (net.Conn, error) {
	if path, isUnix := strings.CutPrefix(address, unixScheme); isUnix {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}
