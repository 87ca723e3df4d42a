package server

import (
	"context"
	"fmt"
	"net"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/accesslog"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// logs opens the log listener. It is closed last, because requests that end while the server drains write lines.
func (o *opening) logs() error {
	s := o.server
	if s.config.LogListen == "" {
		return nil
	}
	l, err := accesslog.Listen(s.config.LogListen)
	if err != nil {
		return fmt.Errorf("--log-listen: %w", err)
	}
	if size := l.SmallBuffer(); size > 0 {
		s.log.Warn("the receive buffer of --log-listen is small, so lines may be lost when many requests end at once, and their slots stay occupied until ttl; set net.core.rmem_max to 16777216",
			zap.Int("bytes", size))
	}
	o.running.Logs = l.Addr()
	o.listeners = append(o.listeners, listener{
		name: "log", closedLast: true, stop: func(context.Context) { l.Close() },
		serve: func(net.Listener) error {
			return l.Serve(func(id string) { s.limiter.ReturnSlots(id, limiter.DoorLog) })
		},
	})
	return nil
}
