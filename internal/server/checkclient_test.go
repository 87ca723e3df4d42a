package server

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/listen"
	"github.com/rlsidecar/rlsidecar/internal/testkit/certtest"
)

func flagAddress(a net.Addr) string {
	if a.Network() == "unix" {
		return listen.UnixScheme + a.String()
	}
	return a.String()
}

func TestChecksReachEveryKindOfAddress(t *testing.T) {
	served, sockets := filesOf(t, certtest.New(t)), t.TempDir()
	served.ClientCA = ""
	for _, test := range []struct {
		name   string
		edit   func(*Config)
		secure bool
	}{
		{"addresses of this machine", func(*Config) {}, false},
		{"all addresses", func(c *Config) { c.HTTP, c.GRPC = "0.0.0.0:0", ":0" }, false},
		{"sockets", func(c *Config) {
			c.HTTP, c.GRPC = listen.UnixScheme+filepath.Join(sockets, "h"), listen.UnixScheme+filepath.Join(sockets, "g")
		}, false},
		{"sockets without files", func(c *Config) { c.HTTP, c.GRPC = listen.UnixScheme+"@checks-h", listen.UnixScheme+"@checks-g" }, false},
		{"TLS", func(c *Config) { c.TLS = served }, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			x := start(t, "domain: d", test.edit)
			if err := CheckHTTP(t.Context(), flagAddress(x.HTTP)); err != nil {
				t.Error("HTTP:", err)
			}
			if err := CheckGRPC(t.Context(), flagAddress(x.GRPC), test.secure); err != nil {
				t.Error("gRPC:", err)
			}
			if err := CheckHTTP(t.Context(), flagAddress(x.Admin)); err == nil || !strings.Contains(err.Error(), "is this rlsidecar's HTTP listener?") {
				t.Errorf("the admin listener: got %v; want an error that contains %q", err, "is this rlsidecar's HTTP listener?")
			}
			if err := x.stop(); err != nil {
				t.Fatal(err)
			}
			if err := CheckHTTP(t.Context(), flagAddress(x.HTTP)); err == nil || errors.Is(err, ErrNotReady) {
				t.Errorf("HTTP, after the server has stopped: got %v; want an error other than ErrNotReady", err)
			}
			if err := CheckGRPC(t.Context(), flagAddress(x.GRPC), test.secure); err == nil || errors.Is(err, ErrNotReady) {
				t.Errorf("gRPC, after the server has stopped: got %v; want an error other than ErrNotReady", err)
			}
		})
	}
}
