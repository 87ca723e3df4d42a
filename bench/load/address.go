package load

import (
	"context"
	"net"
	"strings"
)

// split converts host:port or unix:///path to the network and address arguments of package net.
func split(address string) (network, name string) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return "unix", strings.TrimPrefix(path, "//")
	}
	return "tcp", address
}

// Listen listens on an address that has the form of Config.Target.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	var l net.ListenConfig
	network, name := split(address)
	return l.Listen(ctx, network, name)
}

// Dial connects to an address that has the form of Config.Target.
func Dial(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	network, name := split(address)
	return d.DialContext(ctx, network, name)
}
