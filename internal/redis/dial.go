package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/nonblock"
)

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// dialer returns a dialer whose connections become outdated when age changes.
//
// The dialer never returns an error: go-redis pauses for a second after as many failed dials as its pool has connections.
// Instead it returns a broken connection.
func dialer(dial dialFunc, age *atomic.Uint32) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		made := age.Load()
		nc, err := dial(ctx, network, addr)
		if err != nil {
			return broken{rewrapped{err}}, nil
		}
		return newConn(nc, age, made), nil
	}
}

// notSent returns an error which means that the server has not received a byte of the call.
func notSent(text string) error { return &net.OpError{Op: "dial", Net: "tcp", Err: errors.New(text)} }

// newDialer returns a dialer like the one of go-redis, except that TLS reads and writes with nonblock.
func newDialer(o *goredis.Options) dialFunc {
	d := &net.Dialer{
		Timeout:         o.DialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	if o.TLSConfig == nil {
		return d.DialContext
	}
	return func(_ context.Context, network, addr string) (net.Conn, error) {
		// An aborted handshake costs the server as much as a complete one. So the handshake may last longer
		// than the call that needs the connection.
		ctx, cancel := context.WithTimeout(context.Background(), o.DialTimeout)
		defer cancel()
		nc, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if n := nonblock.Wrap(nc); n != nil {
			nc = n
		}
		conf := o.TLSConfig
		if conf.ServerName == "" {
			conf = conf.Clone()
			conf.ServerName, _, _ = net.SplitHostPort(addr)
		}
		secure := tls.Client(nc, conf)
		if err := secure.HandshakeContext(ctx); err != nil {
			nc.Close()
			return nil, err
		}
		return secure, nil
	}
}
