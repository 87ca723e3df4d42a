package redis

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync/atomic"

	goredis "github.com/redis/go-redis/v9"
)

// newFailoverClient is a client of the master that Sentinels name, each time a connection is made.
// While no Sentinel answers, the last master they named stays the master: it serves well, and
// without this a connection that a late answer cost could not be made again (measured: a healthy
// master was lost within a second of its Sentinels). If it was demoted meanwhile it says READONLY;
// if it is cut off from its replicas, what it counts is lost when that ends, as in any failover.
func newFailoverClient(o *goredis.FailoverOptions) *goredis.Client {
	d := &masterDialer{
		dial:      o.Dialer,
		sentinels: o.SentinelAddrs,
	}
	o.Dialer = d.any
	client := goredis.NewFailoverClient(o)
	client.AddHook(d)
	return client
}

type masterDialer struct {
	dial      func(ctx context.Context, network, addr string) (net.Conn, error)
	sentinels []string
	last      atomic.Pointer[string] // address of the master
}

// toMaster marks the context of a dial that ends at the master.
type toMaster struct{}

// any dials masters and Sentinels. The first master is dialed before there is a hook to mark it.
func (d *masterDialer) any(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := d.dial(ctx, network, addr)
	first := d.last.Load() == nil && !slices.Contains(d.sentinels, addr)
	if err == nil && (first || ctx.Value(toMaster{}) != nil) {
		d.last.Store(&addr)
	}
	return conn, err
}

// DialHook implements goredis.Hook.
func (d *masterDialer) DialHook(next goredis.DialHook) goredis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(context.WithValue(ctx, toMaster{}, true), network, addr)
		last := d.last.Load()
		if err == nil || last == nil || !strings.Contains(err.Error(), "all sentinels specified in configuration are unreachable") {
			return conn, err
		}
		return d.dial(ctx, network, *last)
	}
}

// ProcessHook implements goredis.Hook.
func (d *masterDialer) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

// ProcessPipelineHook implements goredis.Hook.
func (d *masterDialer) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}
