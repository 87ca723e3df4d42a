package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/accesslog"
	"github.com/rlsidecar/rlsidecar/internal/admin"
	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
	"github.com/rlsidecar/rlsidecar/internal/httpapi"
	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/listen"
)

func address(name string, a net.Addr) zap.Field {
	if a == nil {
		return zap.Skip()
	}
	return zap.Stringer(name, a)
}

type listener struct {
	name    string
	socket  net.Listener
	bounded net.Listener // socket, with a bound on its open connections; nil without socket
	serve   func(net.Listener) error
	// stop ends serve. It waits for requests in flight, and aborts them when ctx ends.
	stop func(ctx context.Context)
	// ready and unready, if not nil, report to the clients whether to send requests: over the health service of
	// gRPC, or by closing HTTP connections.
	ready, unready func()
	closedLast     bool
}

// open opens the listeners. After an error none of them stays open.
func (s *server) open() (listeners []listener, running Running, err error) {
	s.config.Answers.Tracing = s.tracing
	api, err := grpcapi.New(s.limiter, s.metrics, s.config.Answers, s.log)
	if err != nil {
		return nil, running, err
	}
	o := &opening{server: s, api: api, running: Running{Snapshot: s.limiter.Current()}}
	for _, open := range []func() error{o.logs, o.grpc, o.http, o.admin, o.metrics} {
		if err = open(); err != nil {
			o.abort()
			return o.listeners, o.running, err
		}
	}
	s.boundListeners(o.listeners)
	return o.listeners, o.running, nil
}

type opening struct {
	server    *server
	api       *grpcapi.Server
	listeners []listener
	running   Running
}

func (o *opening) abort() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	for _, d := range o.listeners {
		if d.socket != nil {
			d.socket.Close()
		}
		d.stop(now)
	}
}

// add opens a socket at address for d. It sets *actual to the address of the socket, whose port is known even if address
// has port 0.
func (o *opening) add(name, address string, actual *net.Addr, d listener) (err error) {
	d.name = name
	if d.socket, err = listen.Open(address); err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w: another process listens there; stop it, or give another address with --%s-listen", err, name)
		}
		err = fmt.Errorf("listen on %s: %w", address, err)
	} else {
		*actual = d.socket.Addr()
	}
	o.listeners = append(o.listeners, d) // d is added even after an error, so that abort stops its server
	return err
}

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
			return l.Serve(func(id string) { s.limiter.ReturnSlots(id, limiter.ReporterLog) })
		},
	})
	return nil
}

func (o *opening) grpc() error {
	d, err := o.server.grpcListener(o.api)
	if err != nil {
		return err
	}
	return o.add("grpc", o.server.config.GRPC, &o.running.GRPC, d)
}

func (o *opening) http() error {
	s := o.server
	if s.config.HTTP == "" {
		return nil
	}
	closed := s.tokens.api == nil && !listen.IsLocal(s.config.HTTP)
	if closed {
		s.log.Warn("the HTTP API is off, because other machines can reach --http-listen and there is no token; give --api-token-file", zap.String("http", s.config.HTTP))
	}
	c := httpapi.Config{
		AnswerJSON: o.api.AnswerJSON, Token: s.tokens.api, Local: listen.IsLocal(s.config.HTTP),
		Ready: s.ready.Load, NotReady: s.notReady,
		API: &httpapi.API{Limiter: s.limiter, Token: s.tokens.api, Closed: closed, Headers: s.config.HTTPHeaders},
		Auth: &httpapi.Auth{
			Limiter: s.limiter, Observer: s, Headers: s.config.HTTPHeaders, Log: s.log,
			ReturnsSlots: s.config.LogListen != "", Gone: listen.Gone, Hold: listen.Hold,
		},
	}
	if s.config.APIInlineConfig {
		c.API.Inline = config.Inline
	}
	if s.config.NoJSON {
		c.AnswerJSON = nil
	}
	d := s.httpListener(httpapi.New(c), 75*time.Second) // longer than the longest delay of an answer
	plain := d.serve
	if s.config.HTTPProxyProtocol {
		d.serve = func(l net.Listener) error { return plain(listen.ProxyProtocol(l, s.trusts)) }
	}
	return o.add("http", s.config.HTTP, &o.running.HTTP, d)
}

func (o *opening) admin() error {
	s := o.server
	if s.config.Admin == "" {
		return nil
	}
	s.watch.fleet = s.newFleet()
	h := admin.New(admin.Config{
		Token: s.tokens.admin, ReadToken: s.tokens.adminRead, Version: s.config.Version, Started: s.watch.started, Now: time.Now, Metrics: s.metrics.Handler(),
		Current: s.limiter.Current, Reload: s.lastReload, UseAgain: s.usePrevious, Totals: s.metrics.Totals, Settling: s.metrics.SettleTally, Denied: s.denials.Top, Shadowed: s.watch.shadowed.Top, Line: s.line, Status: s.status,
		Limiter: s.limiter, Log: s.log, Adjust: s.adjust.service, Used: s.watch.usage.Top, Unmatched: s.unmatched.Top, History: s.watch.history, Times: &s.watch.times, Conditions: s.conditions.List,
		API: (&httpapi.Operator{Limiter: s.limiter, Denied: s.denials.Top, Shadowed: s.watch.shadowed.Top, Used: s.watch.usage.Top, Status: s.status, Unmatched: s.unmatched.Top, Conditions: s.conditions.List, Settling: s.metrics.SettleTally, Log: s.log, Adjustments: s.adjust.api()}).Handler(),
	})
	d := s.httpListener(h, 0) // a profile may take long
	d.closedLast = true
	if err := o.add("admin", s.config.Admin, &o.running.Admin, d); err != nil {
		return err
	}
	s.watch.link = linkOf(s.config.Admin, o.running.Admin)
	return nil
}

func (o *opening) metrics() error {
	s := o.server
	if s.config.Metrics == "" {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle(s.config.MetricsPath, s.metrics.Handler())
	h := http.Handler(mux)
	if listen.IsLocal(s.config.Metrics) {
		h = httpauth.LocalHostOnly(h, "use an address or localhost as the host name")
	}
	d := s.httpListener(h, time.Minute)
	d.closedLast = true
	return o.add("metrics", s.config.Metrics, &o.running.Metrics, d)
}

// httpListener returns the listener of HTTP whose requests handler serves. The timeout bounds the time to write an
// answer; 0 means none.
func (s *server) httpListener(handler http.Handler, timeout time.Duration) listener {
	h := listen.NewHTTP(handler, timeout, s.config.HTTPIdleTimeout, s.log)
	return listener{unready: h.Unready, serve: h.Serve, stop: h.Stop}
}

func (s *server) boundListeners(listeners []listener) {
	traffic := 1
	if s.config.HTTP != "" {
		traffic = 2
	}
	files, sum := listen.FileLimit(), 0
	each, admin := listen.ConnectionBounds(files, debug.SetMemoryLimit(-1), traffic)
	all := &listen.Bounds{}
	for i := range listeners {
		d := &listeners[i]
		if d.socket == nil { // the log listener, which bounds its connections itself
			continue
		}
		most, extra := admin, 0
		switch d.name {
		case "grpc":
			most = cmp.Or(s.config.GRPCMaxConnections, each)
		case "http":
			most, extra = cmp.Or(s.config.HTTPMaxConnections, each), listen.HealthConnections
		}
		sum += most
		l := all.Add(d.socket, most, extra, s.log.With(zap.String("listener", d.name)))
		s.metrics.WatchConnections(d.name, l.Stats)
		d.bounded = l
	}
	if files > 0 && uint64(sum) >= files {
		s.log.Warn("this process may open too few files for the maximum number of connections; raise the limit of open files (ulimit -n), or lower RLSIDECAR_GRPC_MAX_CONNECTIONS and RLSIDECAR_HTTP_MAX_CONNECTIONS", zap.Int("connections", sum), zap.Uint64("files", files))
	}
}

func (s *server) trusts(peer net.Addr) bool {
	snapshot := s.limiter.Current()
	if snapshot == nil || snapshot.Auth == nil {
		return false
	}
	if peer.Network() == "unix" {
		return snapshot.Auth.TrustUnix
	}
	p, err := netip.ParseAddrPort(peer.String())
	return err == nil && snapshot.Auth.Trusts(p.Addr())
}
