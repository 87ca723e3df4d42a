package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
)

// Engine is an implementation of the gRPC listener.
type Engine string

const (
	FastEngine Engine = "fast"    // package h2grpc; methods other than ShouldRateLimit use grpc-go
	GRPCEngine Engine = "grpc-go" // grpc-go for all methods
)

const defaultEngine = FastEngine

func (e Engine) check() error {
	switch e {
	case "", FastEngine, GRPCEngine:
		return nil
	}
	return fmt.Errorf("the gRPC engine %q is unknown; write %s or %s", string(e), FastEngine, GRPCEngine)
}

func (s *server) grpcListener(api *grpcapi.Server) (listener, error) {
	if s.config.TLS.Cert != "" {
		config, err := s.config.TLS.server(s.log)
		if err != nil {
			return listener{}, err
		}
		s.handshakes = newHandshakes(config)
	}
	h := newHealthServer()
	d := listener{ready: func() { h.set(healthpb.HealthCheckResponse_SERVING) }, unready: h.Shutdown}
	fast := cmp.Or(s.config.Engine, defaultEngine) == FastEngine
	if fast && s.tracing != nil { // the fast engine creates no span for a call
		s.log.Info("the engine grpc-go is used, because RLSIDECAR_TRACING needs it")
		fast = false
	}
	if fast {
		others := newGRPCServer(api, h)
		f := s.fastServer(api, others)
		d.serve = f.Serve
		d.stop = func(ctx context.Context) {
			h.end()
			f.Stop(ctx)
			others.Stop()
		}
		return d, nil
	}
	g := newGRPCServer(api, h, s.grpcOptions()...)
	d.serve = func(l net.Listener) error {
		if err := g.Serve(l); !errors.Is(err, grpc.ErrServerStopped) { // stop may have been called before serve
			return err
		}
		return nil
	}
	d.stop = func(ctx context.Context) {
		h.end()
		done := make(chan struct{})
		go func() {
			defer close(done)
			g.GracefulStop()
		}()
		select {
		case <-done:
		case <-ctx.Done():
			g.Stop()
			<-done
		}
	}
	return d, nil
}

func newGRPCServer(api *grpcapi.Server, h *healthServer, options ...grpc.ServerOption) *grpc.Server {
	g := grpc.NewServer(append(options, grpc.ForceServerCodecV2(grpcapi.Codec()), grpc.WaitForHandlers(true))...)
	api.Register(g)
	healthpb.RegisterHealthServer(g, h)
	reflection.Register(g)
	return g
}

// grpcOptions returns the options of a grpc-go server that accepts connections itself, without the fast engine.
func (s *server) grpcOptions() []grpc.ServerOption {
	options := []grpc.ServerOption{
		// Envoy pings as often as it is configured to, even without a call in flight. With the default of 5
		// minutes the server would close the connection.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		// Envoy ignores the server's limit of streams: calls beyond the limit fail, and Envoy then allows the
		// requests. So the limit is higher than the number of streams that Envoy opens, as in the fast engine.
		grpc.MaxConcurrentStreams(16 << 10),
		// Worker goroutines keep their grown stacks. Growing a stack for each call took a fifth of a call's
		// time. Only an idle worker accepts a call, so there must be enough workers for a burst.
		grpc.NumStreamWorkers(uint32(max(128, 4*runtime.GOMAXPROCS(0)))),
	}
	options = append(options, grpc.KeepaliveParams(keepalive.ServerParameters{ // a value of 0 means no bound
		MaxConnectionAge: s.config.MaxConnectionAge, MaxConnectionAgeGrace: s.config.MaxConnectionGrace, MaxConnectionIdle: s.config.MaxConnectionIdle,
	}))
	if s.handshakes != nil {
		options = append(options, grpc.Creds(s.handshakes.credentials()))
	}
	if s.tracing != nil {
		options = append(options, grpc.StatsHandler(s.tracing.Handler("/"+grpcapi.ServiceName+"/ShouldRateLimit")))
	}
	return options
}

// healthServer implements grpc.health.v1 with Watch calls that the server can end. GracefulStop would wait
// forever for Watch calls.
type healthServer struct {
	*health.Server
	ending context.Context
	end    context.CancelFunc
}

func newHealthServer() *healthServer {
	h := &healthServer{Server: health.NewServer()}
	h.ending, h.end = context.WithCancel(context.Background())
	h.set(healthpb.HealthCheckResponse_NOT_SERVING)
	return h
}

// set sets the status of all service names. "ratelimit" is the name in the reference server.
func (h *healthServer) set(status healthpb.HealthCheckResponse_ServingStatus) {
	for _, name := range []string{"", "ratelimit", grpcapi.ServiceName} {
		h.SetServingStatus(name, status)
	}
}

// Watch returns when the stream ends or when the server stops.
func (h *healthServer) Watch(r *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(h.ending, cancel)()
	err := h.Server.Watch(r, &watchStream{stream, ctx})
	if h.ending.Err() != nil {
		return status.Error(codes.Unavailable, "the server is shutting down")
	}
	return err
}

type watchStream struct {
	healthpb.Health_WatchServer
	ctx context.Context
}

func (s *watchStream) Context() context.Context { return s.ctx }
