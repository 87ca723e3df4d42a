// Package server is the running program. It connects the parts, opens the listeners, follows the configuration files,
// and shuts everything down in order. It stops every goroutine that it starts, and waits for it.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/peer"

	"github.com/rlsidecar/rlsidecar/internal/admin"
	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/estimate"
	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
	"github.com/rlsidecar/rlsidecar/internal/httpapi"
	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/denials"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/metrics"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/statsd"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/tracing"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/unmatched"
)

// Config configures Run. It has one field for each flag of serve, or group of flags.
type Config struct {
	// Paths are the configuration files and folders.
	Paths []string
	// Isolate restricts the effect of mistakes in a configuration to the domains that have them.
	Isolate bool
	// XDS is the control plane that provides the configuration, if Paths does not.
	XDS XDS
	// Defaults are the defaults of settings that the files do not state.
	Defaults config.Options
	// Hangup triggers a reload for each received value. It may be nil.
	Hangup <-chan os.Signal

	// GRPC, HTTP and Admin are the addresses of the listeners: host:port, unix:///path or unix://@name. HTTP and
	// Admin may be empty, which means no listener.
	GRPC, HTTP, Admin string
	// Metrics is the address of a listener for the metrics only, at MetricsPath; "" means that they are only at
	// Admin.
	Metrics, MetricsPath string
	// NearLimitRatio is the share of a limit above which hits count as near_limit; 0 means 0.8.
	NearLimitRatio float64
	// Statsd states where metrics are sent, without Source and Log; the zero value means that they are not sent.
	Statsd statsd.Config
	// Tracing traces the decisions of the gRPC listener; nil means no tracing.
	Tracing *tracing.Config
	// AdminToken, or the content of AdminTokenFile, is required for access to Admin. It may be missing only if Admin
	// can be reached only from this machine. Files with tokens are read again when they change.
	AdminToken, AdminTokenFile string
	// AdminReadTokenFile has a token that may only read at Admin; "" means none.
	AdminReadTokenFile string
	// StateDir is the folder that keeps adjustments over a restart; "" means none.
	StateDir string
	// AuditKeyFile has the secret that protects the audit of adjustments; "" means none.
	AuditKeyFile string
	// APIToken, or the content of APITokenFile, is required for the HTTP API. Without a token the API is served only
	// if HTTP can be reached only from this machine.
	APIToken, APITokenFile string
	// SettleKeyFile has the secrets that sign reservations, one or two, the one in use first; "" means that the APIToken
	// signs, or else a random key.
	SettleKeyFile string
	// NoJSON removes /json from HTTP.
	NoJSON bool
	// HTTPProxyProtocol accepts a PROXY header at the start of HTTP connections from trusted proxies.
	HTTPProxyProtocol bool
	// APIInlineConfig accepts limits in requests to the HTTP API.
	APIInlineConfig bool
	// TLS is that of the gRPC listener.
	TLS TLSFiles
	// Engine is that of the gRPC listener; "" means the default.
	Engine Engine
	// MaxConnectionAge ends older gRPC connections, MaxConnectionGrace later their requests in flight; 0 means never.
	MaxConnectionAge, MaxConnectionGrace time.Duration
	// MaxConnectionIdle ends gRPC connections that had no request in flight for this time; 0 means never.
	MaxConnectionIdle time.Duration
	// HTTPIdleTimeout closes HTTP connections that had no request for this time; 0 means defaultHTTPIdle.
	HTTPIdleTimeout time.Duration
	// GRPCMaxConnections and HTTPMaxConnections bound the open connections; 0 means the result of connectionBounds.
	GRPCMaxConnections, HTTPMaxConnections int
	// Modes change the outcome of all denials.
	Modes limiter.Modes
	// Answers configures what answers contain besides the verdict.
	Answers grpcapi.Options
	// HTTPHeaders are the rate limit headers of the HTTP listener.
	HTTPHeaders httpapi.HeaderSets
	// Redis keeps the buckets; the zero value means that they are in memory.
	Redis Redis
	// MemoryMaxKeys bounds the buckets in memory; 0 means memory.DefaultMaxKeys.
	MemoryMaxKeys int

	// ReusePort shares the ports and sockets with other processes that do so, so that a new process can replace an
	// old one without a gap. Linux only.
	ReusePort bool

	// DrainDelay is how long requests are still accepted after readiness has failed, so that clients notice in time.
	DrainDelay time.Duration
	// DrainTimeout bounds the wait for requests in flight; then they are aborted.
	DrainTimeout time.Duration

	// Version and Revision are those of the program.
	Version, Revision string
}

// Check returns an error for mistakes in c itself. It uses no files and no network.
func (c *Config) Check() error {
	if err := c.checkAddresses(); err != nil {
		return err
	}
	if c.AdminToken != "" && c.AdminTokenFile != "" {
		return errors.New("two admin tokens are given; give only one of --admin-token and --admin-token-file")
	}
	if c.APIToken != "" && c.APITokenFile != "" {
		return errors.New("two API tokens are given; give only one of --api-token and --api-token-file")
	}
	if c.Admin != "" && !isLocal(c.Admin) && c.AdminToken == "" && c.AdminTokenFile == "" {
		return fmt.Errorf("--admin-listen %s can be reached from other machines; give --admin-token-file, or listen on 127.0.0.1", c.Admin)
	}
	if c.AdminReadTokenFile != "" && c.AdminToken == "" && c.AdminTokenFile == "" {
		return errors.New("--admin-read-token-file has no effect without an admin token, because everybody may read; give --admin-token-file too")
	}
	if c.GRPCMaxConnections < 0 || c.HTTPMaxConnections < 0 {
		return errors.New("--grpc-max-connections and --http-max-connections must not be negative; leave them out for the default")
	}
	if c.MaxConnectionIdle < 0 || c.HTTPIdleTimeout < 0 {
		return errors.New("--grpc-max-connection-idle and --http-idle-timeout must not be negative")
	}
	if c.Metrics != "" && !strings.HasPrefix(c.MetricsPath, "/") {
		return fmt.Errorf("--metrics-path must start with /, is %q", c.MetricsPath)
	}
	if c.ReusePort && !canSharePorts {
		return errors.New("--reuse-port needs Linux; leave it out here, and restart one instance after the other")
	}
	if len(c.Paths) > 0 && c.XDS.Server != "" {
		return errors.New("--config and --xds-server cannot be combined; give one of them")
	}
	if c.Statsd.Address != "" {
		if err := c.Statsd.Check(); err != nil {
			return err
		}
	}
	if c.Tracing != nil {
		if err := c.Tracing.Check(); err != nil {
			return err
		}
	}
	return cmp.Or(c.Answers.Check(), c.XDS.check(), c.TLS.check(), c.Engine.check())
}

// checkAddresses returns an error for an address that is only a port.
func (c *Config) checkAddresses() error {
	for flag, address := range map[string]string{"grpc": c.GRPC, "http": c.HTTP, "admin": c.Admin, "metrics": c.Metrics} {
		if _, err := strconv.ParseUint(address, 10, 16); err == nil {
			return fmt.Errorf("--%s-listen %s is a port without an address: write 127.0.0.1:%s for this machine only, or :%s for all of its addresses",
				flag, address, address, address)
		}
	}
	return nil
}

// Running describes a started server.
type Running struct {
	// GRPC, HTTP, Admin and Metrics are the addresses of the listeners; nil means that there is none.
	GRPC, HTTP, Admin, Metrics net.Addr
	// Snapshot is the configuration at the start; nil if it has not arrived.
	Snapshot *limiter.Snapshot
	// NotReady has the reasons for which the server is not ready, one per line; "" means that it is ready.
	NotReady string
}

// server has the parts of a running server.
type server struct {
	config    Config
	log       *zap.Logger
	stack     stack
	metrics   *metrics.Metrics
	denials   *denials.Recorder // nil without an admin listener
	watch     *watch            // nil if denials is nil
	limiter   *limiter.Limiter
	adjust    *adjustments
	settle    *settleKeys
	tracing   *tracing.Tracing // nil without tracing
	unmatched *unmatched.Recorder
	// conditions are the present problems.
	conditions *conditions.Registry
	// The tokens of Config; nil if there is none.
	apiToken, adminToken, adminReadToken httpauth.Token
	ready, draining                      atomic.Bool
	noAuthSaid                           atomic.Bool
	redisTrouble                         redisTrouble
	redisGate                            *gate
	// configured is closed when there is a configuration.
	configured   chan struct{}
	isConfigured func()

	// Only the goroutine that loads uses them. keeper is nil without Isolate.
	loader *config.Loader
	keeper *config.Keeper

	mu     sync.Mutex
	reload admin.Reload // guarded by mu
}

// ballast is never touched, so it takes no memory, but counts as a part of the heap. Without it, the garbage
// collector would run constantly for the few megabytes of the real heap, which takes an eighth of a call's time.
var ballast []byte //nolint:unused // being there is its use

const ballastSize = 16 << 20

// ballasted makes ballast once for all servers of a process.
var ballasted sync.Once

// Run serves until ctx ends or a listener fails, and then drains. It calls started when all listeners are open. The
// error is a config.Problems if the configuration cannot be used at the start.
func Run(ctx context.Context, c Config, log *zap.Logger, started func(Running)) error {
	if err := c.Check(); err != nil {
		return err
	}
	ballasted.Do(func() { ballast = make([]byte, ballastSize) })
	s, err := newServer(c, log)
	if err != nil {
		return err
	}
	if s.stack, err = s.newStack(); err != nil {
		return UnusableRedis{err}
	}
	defer s.stack.close()
	s.redisGate = newGate(len(s.stack.redis))
	if s.settle, err = s.newSettleKeys(); err != nil {
		return err
	}
	s.limiter = s.newLimiter()
	if s.adjust, err = s.newAdjustments(); err != nil {
		return err
	}
	defer s.adjust.close()

	if c.Tracing != nil {
		if s.tracing, err = tracing.Start(ctx, *c.Tracing, log); err != nil {
			return err
		}
		defer s.tracing.Stop()
	}

	// Background goroutines outlive ctx: they run until the listeners are closed.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	s.sendMetrics(background, &wg)
	if err := s.configure(ctx, background, &wg); err != nil {
		return err
	}
	if ctx.Err() != nil { // stopped before there was a configuration
		return nil
	}
	s.followRedis(ctx, background, &wg) // before the listeners are open, so that no request waits for Redis
	s.adjust.first(ctx)
	s.settle.first(ctx, s.adjust.ledger)
	listeners, running, err := s.open()
	if err != nil {
		return err
	}
	s.runBackground(background, &wg)
	return s.serve(ctx, listeners, func() {
		log.Info("listening", zap.Stringer("grpc", running.GRPC), address("http", running.HTTP), address("admin", running.Admin), address("metrics", running.Metrics))
		if !s.ready.Load() {
			running.NotReady = s.notReady()
		}
		started(running)
	})
}

// newLimiter returns a limiter without a configuration.
func (s *server) newLimiter() *limiter.Limiter {
	c := limiter.Config{Observer: s.observer(), Modes: s.config.Modes, IDs: s.settle.keys, Now: wallClock, Estimates: &estimate.Estimates{}}
	if s.config.XDS.Server != "" && s.config.XDS.StartWithout {
		c.NoConfig = &s.config.Defaults.OnFailure
	}
	if s.stack.redis != nil {
		c.Local = s.stack.memory
	}
	return limiter.New(s.stack.top, c)
}

// newServer makes the parts that need neither Redis nor a configuration. The error concerns a file with a token.
func newServer(c Config, log *zap.Logger) (*server, error) {
	s := &server{config: c, log: log, metrics: metrics.New(c.Version, c.Revision), configured: make(chan struct{}), conditions: conditions.New(time.Now)}
	s.metrics.WatchConditions(s.conditions.List)
	s.loader = config.NewLoader(c.Defaults)
	if c.Isolate {
		s.keeper = config.NewKeeper(c.Defaults)
	}
	s.isConfigured = sync.OnceFunc(func() { close(s.configured) })
	if c.NearLimitRatio > 0 {
		s.metrics.SetNearLimit(c.NearLimitRatio)
	}
	return s, s.readTokens()
}

// runBackground starts the goroutines that run until ctx ends, when the listeners are open.
func (s *server) runBackground(ctx context.Context, wg *sync.WaitGroup) {
	wg.Go(func() { s.adjust.run(ctx) })
	wg.Go(func() { s.settle.run(ctx, s.adjust.ledger) })
	wg.Go(func() { s.stack.memory.Run(ctx) })
	if s.watch != nil {
		wg.Go(func() { s.runWatch(ctx) })
		if s.watch.fleet != nil {
			wg.Go(func() { s.watch.fleet.run(ctx, s.report) })
		}
	}
}

// readTokens reads the tokens of Config.
func (s *server) readTokens() (err error) {
	if s.apiToken, err = s.token(s.config.APIToken, s.config.APITokenFile); err != nil {
		return err
	}
	if s.adminToken, err = s.token(s.config.AdminToken, s.config.AdminTokenFile); err != nil {
		return err
	}
	s.adminReadToken, err = s.token("", s.config.AdminReadTokenFile)
	return err
}

// token returns a fixed token, or the one in a file, or nil if both are "".
func (s *server) token(fixed, file string) (httpauth.Token, error) {
	if file == "" {
		return httpauth.FixedToken(fixed), nil
	}
	return httpauth.FileToken(file, s.log)
}

// observer returns the observer of all answers.
func (s *server) observer() limiter.Observer {
	s.unmatched = unmatched.New(time.Now, s.log)
	if s.config.Admin != "" {
		s.denials, s.watch = denials.New(time.Now), newWatch(time.Now())
	}
	return observers{s.metrics, s.unmatched, s.denials, s.watch}
}

// Refused implements httpapi.AuthObserver.
func (s *server) Refused(reason string) {
	s.metrics.Refused(reason)
	if reason == httpapi.NotConfigured {
		s.reportNoAuth()
	}
	if s.denials == nil || reason == httpapi.Panicked {
		return
	}
	switch current := s.limiter.Current(); {
	case current.Auth == nil:
		s.denials.Unrouted(denials.NoAuth)
	case !current.Auth.Allow:
		s.denials.Unrouted(denials.NoRoute)
	}
}

// sendMetrics sends metrics to StatsD, if it is configured, until ctx ends.
func (s *server) sendMetrics(ctx context.Context, wg *sync.WaitGroup) {
	if s.config.Statsd.Address == "" {
		return
	}
	c := s.config.Statsd
	c.Source, c.Log = s.metrics.Statsd(), s.log
	wg.Go(func() { statsd.Run(ctx, c) })
}

// address returns a field for the log, or no field for a listener that does not exist.
func address(name string, a net.Addr) zap.Field {
	if a == nil {
		return zap.Skip()
	}
	return zap.Stringer(name, a)
}

// defaultHTTPIdle is longer than the idle timeouts of proxies that keep connections.
const defaultHTTPIdle = 5 * time.Minute

// listener is a port with its server.
type listener struct {
	name    string
	socket  net.Listener
	bounded net.Listener // accepts the connections of socket, up to a bound
	serve   func(net.Listener) error
	// stop ends serve. It waits for requests in flight, and aborts them when ctx ends.
	stop func(ctx context.Context)
	// ready and unready, if not nil, report to watching clients whether to send requests.
	ready, unready func()
	// last means that it stays open until the others are closed.
	last bool
}

// open opens the listeners. After an error none stays open.
func (s *server) open() (listeners []listener, running Running, err error) {
	if s.config.Metrics != "" || s.config.Statsd.Address != "" { // measured only if somebody can read them
		s.config.Answers.Answered = s.metrics.Answered
	}
	if s.config.Redis.URL != "" {
		s.config.Answers.Patience = s.config.Redis.Timeout
	}
	decide := grpcapi.Checker(s.limiter)
	if s.tracing != nil {
		decide = s.tracing.Decisions(decide)
	}
	api, err := grpcapi.New(decide, s.metrics, s.config.Answers, s.log)
	if err != nil {
		return nil, running, err
	}
	o := &opening{server: s, api: api}
	o.running.Snapshot = s.limiter.Current()
	for _, open := range []func() error{o.grpc, o.http, o.admin, o.metrics} {
		if err = open(); err != nil {
			o.giveUp()
			return o.listeners, o.running, err
		}
	}
	s.boundListeners(o.listeners)
	if err = takeOver(o.listeners); err != nil {
		o.giveUp()
	}
	return o.listeners, o.running, err
}

// opening collects listeners while they are opened.
type opening struct {
	server    *server
	api       *grpcapi.Server
	listeners []listener
	running   Running
}

// giveUp closes the opened listeners.
func (o *opening) giveUp() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	for _, d := range o.listeners {
		if d.socket != nil {
			d.socket.Close()
		}
		d.stop(now)
	}
}

// add listens on address for d, and stores the resulting address in at.
func (o *opening) add(name, address string, at *net.Addr, d listener) (err error) {
	d.name = name
	if d.socket, err = listen(address, o.server.config.ReusePort); err != nil {
		if errors.Is(err, syscall.EADDRINUSE) && !o.server.config.ReusePort {
			err = fmt.Errorf("%w: another process listens there; stop it, or give another address with --%s-listen", err, name)
		}
		err = fmt.Errorf("listen on %s: %w", address, err)
	} else {
		*at = d.socket.Addr()
	}
	o.listeners = append(o.listeners, d) // even if it failed, so that it is stopped
	return err
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
	c := httpapi.Config{
		AnswerJSON: o.api.AnswerJSON, Token: s.apiToken, Local: isLocal(s.config.HTTP),
		Ready: s.ready.Load, NotReady: s.notReady, API: s.httpAPI(), Auth: s.authHandler(),
	}
	if s.config.NoJSON {
		c.AnswerJSON = nil
	}
	d := s.httpListener(&http.Server{
		Handler: httpapi.New(c), ReadTimeout: 10 * time.Second,
		WriteTimeout: 75 * time.Second, // longer than the longest delay of an answer
	})
	plain := d.serve
	if s.config.HTTPProxyProtocol {
		d.serve = func(l net.Listener) error { return plain(s.proxyProtocol(l)) }
	} else {
		d.serve = func(l net.Listener) error { return plain(newParkingListener(l)) }
	}
	return o.add("http", s.config.HTTP, &o.running.HTTP, d)
}

func (o *opening) admin() error {
	s := o.server
	if s.config.Admin == "" {
		return nil
	}
	var fleet func(context.Context) admin.Fleet
	if s.watch.fleet = s.newFleet(); s.watch.fleet != nil {
		fleet = s.watch.fleet.read
	}
	h := admin.New(admin.Config{
		Fleet: fleet,
		Token: s.adminToken, ReadToken: s.adminReadToken, Version: s.config.Version, Started: s.watch.started, Now: time.Now, Metrics: s.metrics.Handler(),
		Current: s.limiter.Current, Reload: s.lastReload, Tally: s.metrics.Tally, Denied: s.denials.Top,
		Limiter: s.limiter, Log: s.log, Adjust: s.adjust.service, Used: s.watch.usage.Top, Unmatched: s.unmatched.Top, History: s.watch.history, Times: &s.watch.times, Conditions: s.conditions.List,
		API: (&httpapi.Operator{Limiter: s.limiter, Denied: s.denials.Top, Unmatched: s.unmatched.Top, Conditions: s.conditions.List, Log: s.log, Adjustments: s.adjust.api()}).Handler(),
	})
	d := s.httpListener(&http.Server{Handler: h, ReadTimeout: 10 * time.Second}) // a profile takes as long as the request says
	d.last = true
	return o.add("admin", s.config.Admin, &o.running.Admin, d)
}

func (o *opening) metrics() error {
	s := o.server
	if s.config.Metrics == "" {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle(s.config.MetricsPath, s.metrics.Handler())
	h := http.Handler(mux)
	if isLocal(s.config.Metrics) {
		h = httpauth.ThisMachineOnly(h, "ask by an address or as localhost")
	}
	d := s.httpListener(&http.Server{Handler: h, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute})
	d.last = true
	return o.add("metrics", s.config.Metrics, &o.running.Metrics, d)
}

// httpAPI returns the API for applications.
func (s *server) httpAPI() *httpapi.API {
	closed := s.apiToken == nil && !isLocal(s.config.HTTP)
	if closed {
		s.log.Warn("the HTTP API is off, because other machines can reach --http-listen and there is no token; give --api-token-file", zap.String("http", s.config.HTTP))
	}
	api := &httpapi.API{Limiter: s.limiter, Token: s.apiToken, Closed: closed, Headers: s.config.HTTPHeaders}
	if s.config.APIInlineConfig {
		api.Inline = config.Inline
	}
	return api
}

// authHandler returns the handler of auth requests.
func (s *server) authHandler() *httpapi.Auth {
	return &httpapi.Auth{Limiter: s.limiter, Observer: s, Headers: s.config.HTTPHeaders, Log: s.log}
}

// httpListener completes h.
func (s *server) httpListener(h *http.Server) listener {
	h.ReadHeaderTimeout = 5 * time.Second
	h.IdleTimeout = cmp.Or(s.config.HTTPIdleTimeout, defaultHTTPIdle)
	h.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		// The address only has to differ between connections. Reading the real one from c could block on a PROXY
		// header.
		return peer.NewContext(markSpare(ctx, c), &peer.Peer{Addr: &net.UnixAddr{}})
	}
	h.ConnState = parkIdle
	h.MaxHeaderBytes = 128 << 10                           // twice Envoy's maximum, because a path may occur twice
	h.ErrorLog, _ = zap.NewStdLogAt(s.log, zap.DebugLevel) // errors of clients
	var leaving atomic.Bool
	handler := h.Handler
	h.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if leaving.Load() {
			w.Header().Set("Connection", "close") // the client continues on another connection
		}
		if !onlyHealth(w, r) {
			handler.ServeHTTP(w, r)
		}
	})
	return listener{
		unready: func() { leaving.Store(true) },
		serve: func(l net.Listener) error {
			if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		},
		stop: func(ctx context.Context) {
			if h.Shutdown(ctx) != nil {
				h.Close()
			}
		},
	}
}

// mayBeReady reports whether there is a configuration and Redis, if it is used, does not delay readiness.
func (s *server) mayBeReady() bool {
	select {
	case <-s.configured:
	default:
		return false
	}
	select {
	case <-s.redisGate.opened:
		return true
	default:
		return false
	}
}

// waitUntilReady waits for mayBeReady; it returns false if ctx ends first.
func (s *server) waitUntilReady(ctx context.Context) bool {
	for _, open := range []<-chan struct{}{s.configured, s.redisGate.opened} {
		select {
		case <-open:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// notReady returns the reasons for which this sidecar is not ready, one per line.
func (s *server) notReady() string {
	if s.draining.Load() {
		return "draining: this sidecar is being stopped\n"
	}
	var b strings.Builder
	select {
	case <-s.configured:
	default:
		b.WriteString("there is no configuration yet\n")
	}
	for _, c := range s.conditions.List() {
		fmt.Fprintf(&b, "%s: %s %s\n", c.Name, c.Summary, c.Remedy)
	}
	return b.String()
}

// beReady reports readiness to watching clients.
func (s *server) beReady(listeners []listener) {
	s.ready.Store(true)
	for _, d := range listeners {
		if d.ready != nil {
			d.ready()
		}
	}
}

// serve opens the listeners. When asked ends or one of them fails, it closes them in order.
func (s *server) serve(asked context.Context, listeners []listener, started func()) error {
	ctx, fail := context.WithCancelCause(asked)
	defer fail(nil)
	var serving sync.WaitGroup
	for _, d := range listeners {
		serving.Go(func() {
			if err := d.serve(d.bounded); err != nil {
				fail(fmt.Errorf("serve on %s: %w", d.socket.Addr(), err))
			}
		})
	}
	if s.mayBeReady() {
		s.beReady(listeners)
	}
	started()
	if !s.ready.Load() && s.waitUntilReady(ctx) {
		s.beReady(listeners)
		s.log.Info("ready")
	}
	<-ctx.Done()

	s.draining.Store(true)
	for _, d := range listeners {
		if d.unready != nil {
			d.unready()
		}
	}
	s.ready.Store(false) // from now on each answer over HTTP closes its connection
	for _, d := range listeners {
		if s.config.ReusePort {
			if err := leavePort(d.socket); err != nil {
				s.log.Warn("the port cannot be handed over early; new connections arrive here until it is closed", zap.Stringer("port", d.socket.Addr()), zap.Error(err))
			}
		}
	}
	var failure error
	if asked.Err() == nil {
		failure = context.Cause(ctx)
	} else {
		s.log.Info("draining", zap.Duration("delay", s.config.DrainDelay), zap.Duration("timeout", s.config.DrainTimeout))
		time.Sleep(s.config.DrainDelay)
	}
	bound, cancel := context.WithTimeout(context.Background(), s.config.DrainTimeout)
	defer cancel()
	for _, last := range []bool{false, true} {
		var stopping sync.WaitGroup
		for _, d := range listeners {
			if d.last == last {
				stopping.Go(func() { d.stop(bound) })
			}
		}
		stopping.Wait()
	}
	serving.Wait()
	s.log.Info("stopped")
	return failure
}
