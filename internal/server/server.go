// Package server is the running program: it puts the parts together, opens the doors, follows the
// configuration files, and shuts everything down in order. Whatever it starts it stops and waits
// for.
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

// Config is what Run needs to know. It has one field for each flag of serve, or group of them.
type Config struct {
	// Paths are the configuration files, and folders of them.
	Paths []string
	// Isolate keeps mistakes in a configuration to the domains they are in: the others go live.
	Isolate bool
	// XDS brings the configuration instead.
	XDS XDS
	// Defaults for what the files leave open.
	Defaults config.Options
	// Hangup asks for the files to be read again, each time something arrives. May be nil.
	Hangup <-chan os.Signal

	// Where to listen: host:port, unix:///path or unix://@name. HTTP and Admin may be empty: not at
	// all.
	GRPC, HTTP, Admin string
	// Metrics is where Prometheus finds the metrics, and nothing else, at MetricsPath; "": at Admin
	// only.
	Metrics, MetricsPath string
	// NearLimitRatio is the part of a limit above which hits count as near it; 0: 0.8.
	NearLimitRatio float64
	// Statsd is where metrics are sent, Source and Log aside; its zero value: nowhere.
	Statsd statsd.Config
	// Tracing sends traces of the gRPC door's decisions; nil: not at all.
	Tracing *tracing.Config
	// AdminToken, or the content of AdminTokenFile, is needed to see anything at Admin; required where
	// that is not this machine only. Files with tokens are read again when they change.
	AdminToken, AdminTokenFile string
	// AdminReadTokenFile holds a token that is enough to read at Admin, and not to change anything; "": none is.
	AdminReadTokenFile string
	// StateDir is the folder where adjustments are kept over a restart; "": nowhere.
	StateDir string
	// AuditKeyFile holds the secret that the audit of adjustments is chained with; "": there is none.
	AuditKeyFile string
	// APIToken, or the content of APITokenFile, is needed to ask the HTTP API. Without one it answers
	// only where HTTP can be reached from this machine alone.
	APIToken, APITokenFile string
	// SettleKeyFile has the secrets that sign reservations, one or two, the one in use first; "": the APIToken signs, or
	// else a random one.
	SettleKeyFile string
	// NoJSON: there is no /json at HTTP.
	NoJSON bool
	// HTTPProxyProtocol: connections of trusted proxies to HTTP may start with a PROXY header.
	HTTPProxyProtocol bool
	// APIInlineConfig lets requests to the HTTP API bring limits of their own.
	APIInlineConfig bool
	// TLS of the gRPC door.
	TLS TLSFiles
	// Engine of the gRPC door; "": the default.
	Engine Engine
	// MaxConnectionAge ends gRPC connections that are older, MaxConnectionGrace what they still have
	// under way later; 0: never.
	MaxConnectionAge, MaxConnectionGrace time.Duration
	// MaxConnectionIdle ends gRPC connections that have nothing under way for so long; 0: never.
	MaxConnectionIdle time.Duration
	// HTTPIdleTimeout closes HTTP connections that wait so long for a request; 0: defaultHTTPIdle.
	HTTPIdleTimeout time.Duration
	// GRPCMaxConnections and HTTPMaxConnections bound the open connections; 0: connectionBounds.
	GRPCMaxConnections, HTTPMaxConnections int
	// Modes change what all denials come to.
	Modes limiter.Modes
	// Answers is what answers carry beside the verdict.
	Answers grpcapi.Options
	// HTTPHeaders are those of decisions at the HTTP door.
	HTTPHeaders httpapi.HeaderSets
	// Redis keeps the buckets; its zero value: they are in memory.
	Redis Redis
	// MemoryMaxKeys bounds the buckets kept in memory; 0: memory.DefaultMaxKeys.
	MemoryMaxKeys int

	// ReusePort shares the ports with other processes that share them, so that a new one takes over
	// before the old one leaves. Linux only; it means nothing for Unix sockets.
	ReusePort bool

	// DrainDelay is for how long requests are still taken after readiness has failed, so that those
	// who send them notice in time.
	DrainDelay time.Duration
	// DrainTimeout bounds the wait for requests under way; what is left then is cut off.
	DrainTimeout time.Duration

	// Version and Revision of the program.
	Version, Revision string
}

// Check returns what is wrong with c itself, whatever the state of files and network.
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
		return fmt.Errorf("the admin address %s can be reached from elsewhere; give a token, or listen on 127.0.0.1", c.Admin)
	}
	if c.AdminReadTokenFile != "" && c.AdminToken == "" && c.AdminTokenFile == "" {
		return errors.New("a token for reading is given, but no admin token: without one everybody may read; give --admin-token-file too")
	}
	if c.GRPCMaxConnections < 0 || c.HTTPMaxConnections < 0 {
		return errors.New("the most connections of a listener must not be negative; leave it out for the default")
	}
	if c.MaxConnectionIdle < 0 || c.HTTPIdleTimeout < 0 {
		return errors.New("an idle timeout must not be negative")
	}
	if c.Metrics != "" && !strings.HasPrefix(c.MetricsPath, "/") {
		return fmt.Errorf("the path of the metrics is %q; it must start with /", c.MetricsPath)
	}
	if c.ReusePort && !canSharePorts {
		return errors.New("--reuse-port needs Linux; leave it out here, and restart one instance after the other")
	}
	if len(c.Paths) > 0 && c.XDS.Server != "" {
		return errors.New("the configuration comes from files or from an xDS server, not from both: give --config or --xds-server")
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

// checkAddresses finds a port that stands alone.
func (c *Config) checkAddresses() error {
	for flag, address := range map[string]string{"grpc": c.GRPC, "http": c.HTTP, "admin": c.Admin, "metrics": c.Metrics} {
		if _, err := strconv.ParseUint(address, 10, 16); err == nil {
			return fmt.Errorf("--%s-listen %s is a port without an address: write 127.0.0.1:%s for this machine only, or :%s for all of its addresses",
				flag, address, address, address)
		}
	}
	return nil
}

// Running is what has been started.
type Running struct {
	// GRPC, HTTP, Admin and Metrics are where it listens; nil: not at all.
	GRPC, HTTP, Admin, Metrics net.Addr
	// Snapshot is the configuration that it started with; nil: it waits for the first.
	Snapshot *limiter.Snapshot
	// NotReady is why it is not ready, a line for each reason; "": it is.
	NotReady string
}

// server is the parts that are there while Run runs.
type server struct {
	config    Config
	log       *zap.Logger
	stack     stack
	metrics   *metrics.Metrics
	denials   *denials.Recorder // nil: there is no admin port that tells of them
	watch     *watch            // nil where denials is
	limiter   *limiter.Limiter
	adjust    *adjustments
	settle    *settleKeys
	tracing   *tracing.Tracing // nil: not at all
	unmatched *unmatched.Recorder
	// conditions is what is wrong now.
	conditions *conditions.Registry
	// The tokens of Config; nil: there is none.
	apiToken, adminToken, adminReadToken httpauth.Token
	ready, draining                      atomic.Bool
	noAuthSaid                           atomic.Bool
	redisTrouble                         redisTrouble
	redisGate                            *gate
	// configured is closed when there is a configuration.
	configured   chan struct{}
	isConfigured func()

	// Both are of the one goroutine that loads; keeper is nil unless Isolate.
	loader *config.Loader
	keeper *config.Keeper

	mu     sync.Mutex
	reload admin.Reload // guarded by mu
}

// ballast is never touched, so that it takes no memory, but counts as a part of the heap: with the
// few megabytes that are really there the garbage collector would run all the time, for an eighth of
// a call's cost.
var ballast []byte //nolint:unused // being there is its use

const ballastSize = 16 << 20

// ballasted makes ballast once for all servers of a process.
var ballasted sync.Once

// Run serves until ctx ends, or a door fails, and drains. It calls started once all doors are
// open. The error is a config.Problems if the configuration cannot be used at the start.
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

	// What runs in the background outlives ctx: it goes on until the doors are closed.
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
	s.followRedis(ctx, background, &wg) // before there are ports at which somebody would have to wait with us
	s.adjust.first(ctx)
	s.settle.first(ctx, s.adjust.ledger)
	doors, running, err := s.open()
	if err != nil {
		return err
	}
	s.runBackground(background, &wg)
	return s.serve(ctx, doors, func() {
		log.Info("listening", zap.Stringer("grpc", running.GRPC), address("http", running.HTTP), address("admin", running.Admin), address("metrics", running.Metrics))
		if !s.ready.Load() {
			running.NotReady = s.notReady()
		}
		started(running)
	})
}

// newLimiter makes the limiter, which has no configuration yet.
func (s *server) newLimiter() *limiter.Limiter {
	c := limiter.Config{Observer: s.observer(), Modes: s.config.Modes, IDs: s.settle.keys, Now: wallClock}
	if s.config.XDS.Server != "" && s.config.XDS.StartWithout {
		c.NoConfig = &s.config.Defaults.OnFailure
	}
	if s.stack.redis != nil {
		c.Local = s.stack.memory
	}
	return limiter.New(s.stack.top, c)
}

// newServer makes what needs neither Redis nor a configuration. The error is of a file with a token.
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

// runBackground starts what runs until ctx ends, once the listeners are open.
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

// token is a fixed one, or that in a file; nil where both are "".
func (s *server) token(fixed, file string) (httpauth.Token, error) {
	if file == "" {
		return httpauth.FixedToken(fixed), nil
	}
	return httpauth.FileToken(file, s.log)
}

// observer is told of every answer.
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

// sendMetrics sends metrics to statsd, if there is one, until ctx ends.
func (s *server) sendMetrics(ctx context.Context, wg *sync.WaitGroup) {
	if s.config.Statsd.Address == "" {
		return
	}
	c := s.config.Statsd
	c.Source, c.Log = s.metrics.Statsd(), s.log
	wg.Go(func() { statsd.Run(ctx, c) })
}

// address is a field for the log; none for a door that is not there.
func address(name string, a net.Addr) zap.Field {
	if a == nil {
		return zap.Skip()
	}
	return zap.Stringer(name, a)
}

// defaultHTTPIdle is longer than the idle timeouts of the proxies that keep connections.
const defaultHTTPIdle = 5 * time.Minute

// door is one way in.
type door struct {
	name     string
	listener net.Listener
	bounded  net.Listener // accepts the connections of listener, up to a bound
	serve    func(net.Listener) error
	// stop ends serve: it waits for what is under way, and cuts it off when ctx ends.
	stop func(ctx context.Context)
	// ready and unready, if any, tell those who watch that requests should come, and that they should
	// go elsewhere.
	ready, unready func()
	// last: it stays open until the others are closed.
	last bool
}

// open makes the doors, listening. On an error none is left open.
func (s *server) open() (doors []door, running Running, err error) {
	if s.config.Metrics != "" || s.config.Statsd.Address != "" { // who does not ask for response times does not pay for them
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
			return o.doors, o.running, err
		}
	}
	s.boundListeners(o.doors)
	if err = takeOver(o.doors); err != nil {
		o.giveUp()
	}
	return o.doors, o.running, err
}

// opening is listeners that are being opened.
type opening struct {
	server  *server
	api     *grpcapi.Server
	doors   []door
	running Running
}

// giveUp closes what was opened.
func (o *opening) giveUp() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	for _, d := range o.doors {
		if d.listener != nil {
			d.listener.Close()
		}
		d.stop(now)
	}
}

// add listens on an address for d, and puts in at what came of it.
func (o *opening) add(name, address string, at *net.Addr, d door) (err error) {
	d.name = name
	if d.listener, err = listen(address, o.server.config.ReusePort); err != nil {
		if errors.Is(err, syscall.EADDRINUSE) && !o.server.config.ReusePort {
			err = fmt.Errorf("%w: another process listens there; stop it, or give another address by --%s-listen", err, name)
		}
		err = fmt.Errorf("listen on %s: %w", address, err)
	} else {
		*at = d.listener.Addr()
	}
	o.doors = append(o.doors, d) // in any case, so that it is stopped
	return err
}

func (o *opening) grpc() error {
	d, err := o.server.grpcDoor(o.api)
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
		Ready: s.ready.Load, NotReady: s.notReady, API: s.httpAPI(), Auth: s.authDoor(),
	}
	if s.config.NoJSON {
		c.AnswerJSON = nil
	}
	d := s.httpDoor(&http.Server{
		Handler: httpapi.New(c), ReadTimeout: 10 * time.Second,
		WriteTimeout: 75 * time.Second, // longer than an answer may be held
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
	d := s.httpDoor(&http.Server{Handler: h, ReadTimeout: 10 * time.Second}) // a profile takes as long as it is asked to
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
	d := s.httpDoor(&http.Server{Handler: h, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute})
	d.last = true
	return o.add("metrics", s.config.Metrics, &o.running.Metrics, d)
}

// httpAPI is the API for applications.
func (s *server) httpAPI() *httpapi.API {
	closed := s.apiToken == nil && !isLocal(s.config.HTTP)
	if closed {
		s.log.Warn("the HTTP API is closed: others than this machine can reach it, and there is no token for it", zap.String("http", s.config.HTTP))
	}
	api := &httpapi.API{Limiter: s.limiter, Token: s.apiToken, Closed: closed, Headers: s.config.HTTPHeaders}
	if s.config.APIInlineConfig {
		api.Inline = config.Inline
	}
	return api
}

// authDoor is what proxies ask by HTTP.
func (s *server) authDoor() *httpapi.Auth {
	return &httpapi.Auth{Limiter: s.limiter, Observer: s, Headers: s.config.HTTPHeaders, Log: s.log}
}

// httpDoor completes h.
func (s *server) httpDoor(h *http.Server) door {
	h.ReadHeaderTimeout = 5 * time.Second
	h.IdleTimeout = cmp.Or(s.config.HTTPIdleTimeout, defaultHTTPIdle)
	h.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		// The address tells connections apart, and means nothing: c could have to read it from the client.
		return peer.NewContext(markSpare(ctx, c), &peer.Peer{Addr: &net.UnixAddr{}})
	}
	h.ConnState = parkIdle
	h.MaxHeaderBytes = 128 << 10                           // twice what Envoy takes: its client's path may come twice
	h.ErrorLog, _ = zap.NewStdLogAt(s.log, zap.DebugLevel) // what clients do wrong
	var leaving atomic.Bool
	handler := h.Handler
	h.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if leaving.Load() {
			w.Header().Set("Connection", "close") // whoever asks on comes by another connection
		}
		if !onlyHealth(w, r) {
			handler.ServeHTTP(w, r)
		}
	})
	return door{
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

// mayBeReady reports whether there is a configuration, and Redis, if there is one, does not hold readiness back.
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

// waitUntilReady waits until mayBeReady; false: ctx has ended.
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

// notReady is why this sidecar is not ready, a line for each reason.
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

// beReady tells that requests should come.
func (s *server) beReady(doors []door) {
	s.ready.Store(true)
	for _, d := range doors {
		if d.ready != nil {
			d.ready()
		}
	}
}

// serve opens the doors and, when asked ends or one of them fails, closes them in order.
func (s *server) serve(asked context.Context, doors []door, started func()) error {
	ctx, fail := context.WithCancelCause(asked)
	defer fail(nil)
	var serving sync.WaitGroup
	for _, d := range doors {
		serving.Go(func() {
			if err := d.serve(d.bounded); err != nil {
				fail(fmt.Errorf("serve on %s: %w", d.listener.Addr(), err))
			}
		})
	}
	if s.mayBeReady() {
		s.beReady(doors)
	}
	started()
	if !s.ready.Load() && s.waitUntilReady(ctx) {
		s.beReady(doors)
		s.log.Info("ready")
	}
	<-ctx.Done()

	s.draining.Store(true)
	for _, d := range doors {
		if d.unready != nil {
			d.unready()
		}
	}
	s.ready.Store(false) // whoever sees this finds each answer over HTTP closing its connection
	for _, d := range doors {
		if s.config.ReusePort {
			if err := leavePort(d.listener); err != nil {
				s.log.Warn("new connections still come here until the port is closed", zap.Stringer("port", d.listener.Addr()), zap.Error(err))
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
		for _, d := range doors {
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
