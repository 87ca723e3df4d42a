// Package server is the running program. It connects the parts, opens the listeners, follows the
// configuration files, and shuts everything down in order. It stops each goroutine that it starts, and waits
// until the goroutine has ended.
package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/admin"
	"github.com/rlsidecar/rlsidecar/internal/estimate"
	"github.com/rlsidecar/rlsidecar/internal/httpapi"
	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/listen"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/metrics"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/statsd"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topkeys"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/tracing"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/unmatched"
)

// Running describes a started server.
type Running struct {
	// GRPC, HTTP, Admin, Metrics and Logs are the addresses of the listeners. nil means that there is no such
	// listener.
	GRPC, HTTP, Admin, Metrics, Logs net.Addr
	// Snapshot is the configuration at the start. It is nil if no configuration has arrived yet.
	Snapshot *limiter.Snapshot
	// NotReady lists the reasons for which the server is not ready, one per line. "" means that the server is
	// ready.
	NotReady string
}

// accessTokens are the tokens of Config. A token that is not configured is nil.
type accessTokens struct{ api, admin, adminRead httpauth.Token }

type server struct {
	config          Config
	log             *zap.Logger
	stack           stack
	metrics         *metrics.Metrics
	denials         *topkeys.Recorder // nil without an admin listener
	watch           *watch            // nil without an admin listener
	limiter         *limiter.Limiter
	adjust          *adjustments
	settle          *settleKeys
	tracing         *tracing.Tracing   // nil without tracing
	handshakes      *listen.Handshakes // nil without TLS
	unmatched       *unmatched.Recorder
	conditions      *conditions.Registry
	tokens          accessTokens
	ready, draining atomic.Bool
	noAuthLogged    atomic.Bool
	redisFailures   redisFailures
	storeTimes      history.Times // the durations of calls to Redis
	redisReadiness  *readiness
	// configured is closed when the first configuration is in use.
	configured   chan struct{}
	isConfigured func()

	loading sync.Mutex // held while files are loaded, or the previous configuration is put in use again
	mu      sync.Mutex
	reload  admin.Reload // guarded by mu
}

// ballast is never written, so it occupies no memory, but the garbage collector counts it as a part of the
// heap. Without ballast, the garbage collector would run constantly for the few megabytes of the real heap.
// Those runs would take an eighth of a call's time.
var ballast []byte //nolint:unused // only its size matters

const ballastSize = 16 << 20

// ballasted ensures that a process allocates ballast only once, for all its servers.
var ballasted sync.Once

// Run serves until ctx ends or a listener fails, and then drains. It calls started when all listeners are
// open. The error has type config.Problems if the configuration cannot be used at the start, and type UnusableRedis
// if the settings of Redis cannot.
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
	s.redisReadiness = newReadiness(len(s.stack.redis))
	if s.settle, err = s.newSettleKeys(); err != nil {
		return err
	}
	s.limiter = s.newLimiter()
	s.metrics.WatchSlots(s.limiter.SlotCounts)
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
	if c.Statsd.Address != "" {
		c.Statsd.Source, c.Statsd.Log = s.metrics.Statsd(), log
		wg.Go(func() { statsd.Run(background, c.Statsd) })
	}
	if err := s.configure(ctx, background, &wg); err != nil {
		return err
	}
	if ctx.Err() != nil { // the server was stopped before there was a configuration
		return nil
	}
	s.awaitRedis(ctx, background, &wg) // before the listeners open, so that no request waits for Redis
	listeners, running, err := s.open()
	if err != nil {
		return err
	}
	s.runBackground(background, &wg)
	return s.serve(ctx, listeners, func() {
		log.Info("listening", zap.Stringer("grpc", running.GRPC), address("http", running.HTTP), address("admin", running.Admin), address("metrics", running.Metrics), address("logs", running.Logs))
		running.NotReady = s.notReady()
		started(running)
	})
}

func (s *server) newLimiter() *limiter.Limiter {
	c := limiter.Config{
		Observer: s.observer(), Modes: s.config.Modes, IDs: s.settle.keys, Now: wallClock, Estimates: &estimate.Estimates{},
		Repeater: s.stack.repeats, Process: rand.Uint64() | 1,
	}
	if s.config.XDS.Server != "" && s.config.XDS.StartWithout {
		c.NoConfig = &s.config.Defaults.OnFailure
	}
	if s.stack.redis != nil {
		c.Local = s.stack.memory
		c.Deadline = func() time.Time { return time.Now().Add(s.config.Redis.Timeout + answerMargin) }
	}
	return limiter.New(s.stack.top, c)
}

// newServer creates the parts that need neither Redis nor a configuration.
func newServer(c Config, log *zap.Logger) (*server, error) {
	s := &server{config: c, log: log, metrics: metrics.New(c.Version, c.Revision), configured: make(chan struct{}), conditions: conditions.New(time.Now)}
	s.metrics.WatchConditions(s.conditions.List)
	s.isConfigured = sync.OnceFunc(func() { close(s.configured) })
	if c.NearLimitRatio > 0 {
		s.metrics.SetNearLimit(c.NearLimitRatio)
	}
	return s, s.readTokens()
}

// runBackground starts goroutines that run until ctx ends. The caller must end ctx only after the listeners have
// been closed.
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

func (s *server) readTokens() (err error) {
	c, t := &s.config, &s.tokens
	t.api, t.admin = httpauth.FixedToken(c.APIToken), httpauth.FixedToken(c.AdminToken) // nil for ""
	for _, from := range []struct {
		file  string
		token *httpauth.Token
	}{{c.APITokenFile, &t.api}, {c.AdminTokenFile, &t.admin}, {c.AdminReadTokenFile, &t.adminRead}} {
		if from.file != "" && err == nil {
			*from.token, err = httpauth.FileToken(from.file, s.log)
		}
	}
	return err
}

// observer returns the observer of all answers, and creates the recorders that it uses.
func (s *server) observer() limiter.Observer {
	s.unmatched = unmatched.New(time.Now, s.log)
	if s.config.Admin != "" {
		s.denials, s.watch = topkeys.New(time.Now), newWatch(time.Now())
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
		s.denials.Unrouted(topkeys.NoAuth)
	case !current.Auth.Allow:
		s.denials.Unrouted(topkeys.NoRoute)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (s *server) waitUntilReady(ctx context.Context) bool {
	for _, open := range []<-chan struct{}{s.configured, s.redisReadiness.opened} {
		select {
		case <-open:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// notReady returns the reasons for which this sidecar is not ready, one per line, or "" if it is. They include all
// current conditions, even those that do not prevent readiness.
func (s *server) notReady() string {
	switch {
	case s.draining.Load():
		return "draining: this sidecar is being stopped\n"
	case s.ready.Load():
		return ""
	}
	var b strings.Builder
	if !isClosed(s.configured) {
		b.WriteString("there is no configuration yet\n")
	}
	for _, c := range s.conditions.List() {
		fmt.Fprintf(&b, "%s: %s %s", c.Name, c.Summary, c.Remedy)
		if c.Error != "" {
			fmt.Fprintf(&b, " Error: %s", c.Error)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (s *server) beReady(listeners []listener) {
	s.ready.Store(true)
	for _, d := range listeners {
		if d.ready != nil {
			d.ready()
		}
	}
}

// serve serves on the listeners, and calls started. When the context running ends or a listener fails, serve drains and
// closes the listeners in order. It returns the error of the listener, or nil.
func (s *server) serve(running context.Context, listeners []listener, started func()) error {
	ctx, fail := context.WithCancelCause(running)
	defer fail(nil)
	var serving sync.WaitGroup
	for _, d := range listeners {
		serving.Go(func() {
			if err := d.serve(d.bounded); err != nil {
				fail(fmt.Errorf("serve the %s listener: %w", d.name, err))
			}
		})
	}
	if isClosed(s.configured) && isClosed(s.redisReadiness.opened) {
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
	s.ready.Store(false) // after unready, so that an answer of /readyz with 503 closes its connection
	var failure error
	if running.Err() == nil {
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
			if d.closedLast == last {
				stopping.Go(func() { d.stop(bound) })
			}
		}
		stopping.Wait()
	}
	serving.Wait()
	s.log.Info("stopped")
	return failure
}
