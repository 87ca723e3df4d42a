package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
)

// Engine is what serves the gRPC door.
type Engine string

// The engines.
const (
	FastEngine Engine = "fast"    // package h2grpc; grpc-go for all but ShouldRateLimit
	GRPCEngine Engine = "grpc-go" // grpc-go alone
)

// The default: of what does not say which.
const defaultEngine = FastEngine

func (e Engine) check() error {
	switch e {
	case "", FastEngine, GRPCEngine:
		return nil
	}
	return fmt.Errorf("no gRPC engine is called %q; there are %s and %s", string(e), FastEngine, GRPCEngine)
}

// grpcDoor makes the gRPC server. The error is of the TLS files.
func (s *server) grpcDoor(api *grpcapi.Server) (door, error) {
	var tls *tls.Config
	if s.config.TLS.Cert != "" {
		var err error
		if tls, err = s.config.TLS.server(s.log); err != nil {
			return door{}, err
		}
	}
	h := newHealthServer()
	d := door{ready: func() { h.set(healthpb.HealthCheckResponse_SERVING) }, unready: h.Shutdown}
	fast := cmp.Or(s.config.Engine, defaultEngine) == FastEngine
	if fast && s.tracing != nil { // a span for each call is what this engine saves
		s.log.Info("grpc-go serves the gRPC door, for calls are traced")
		fast = false
	}
	if fast {
		others := newGRPCServer(api, h)
		f := s.fastServer(api, others, tls)
		d.serve = f.Serve
		d.stop = func(ctx context.Context) {
			h.end()
			f.Stop(ctx)
			others.Stop()
		}
		return d, nil
	}
	g := newGRPCServer(api, h, s.grpcOptions(tls)...)
	d.serve = func(l net.Listener) error {
		if err := g.Serve(l); !errors.Is(err, grpc.ErrServerStopped) { // stopped before it was started
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

// newGRPCServer makes a grpc-go server of everything there is over gRPC.
func newGRPCServer(api *grpcapi.Server, h *healthServer, options ...grpc.ServerOption) *grpc.Server {
	g := grpc.NewServer(append(options, grpc.ForceServerCodecV2(grpcapi.Codec()), grpc.WaitForHandlers(true))...)
	api.Register(g)
	healthpb.RegisterHealthServer(g, h)
	reflection.Register(g)
	return g
}

// grpcOptions are those of a grpc-go server that has the connections.
func (s *server) grpcOptions(tls *tls.Config) []grpc.ServerOption {
	options := []grpc.ServerOption{
		// Envoy pings as often as it is configured to, with no call under way; the default of 5
		// minutes would answer with the end of the connection.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		// Envoy does not wait for a limit on streams: calls over it would fail, and let requests pass. So it is
		// more than Envoy sends; that of the fast engine.
		grpc.MaxConcurrentStreams(16 << 10),
		// Goroutines that are kept keep their stacks grown, which was a fifth of a call's cost. They
		// take calls only while they are free: enough of them for a burst.
		grpc.NumStreamWorkers(uint32(max(128, 4*runtime.GOMAXPROCS(0)))),
	}
	options = append(options, grpc.KeepaliveParams(keepalive.ServerParameters{ // 0: for ever
		MaxConnectionAge: s.config.MaxConnectionAge, MaxConnectionAgeGrace: s.config.MaxConnectionGrace, MaxConnectionIdle: s.config.MaxConnectionIdle,
	}))
	if tls != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(tls)))
	}
	if s.tracing != nil {
		options = append(options, grpc.StatsHandler(s.tracing.Handler("/"+grpcapi.ServiceName+"/ShouldRateLimit")))
	}
	return options
}

// healthServer is grpc.health.v1, whose Watches can be ended: GracefulStop would wait for them for
// ever.
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

// set sets the status of all names; "ratelimit" is the reference server's.
func (h *healthServer) set(status healthpb.HealthCheckResponse_ServingStatus) {
	for _, name := range []string{"", "ratelimit", grpcapi.ServiceName} {
		h.SetServingStatus(name, status)
	}
}

// Watch implements the service.
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

// watchStream is a stream with another context.
type watchStream struct {
	healthpb.Health_WatchServer
	ctx context.Context
}

func (s *watchStream) Context() context.Context { return s.ctx }
