package server

import (
	"context"
	"errors"
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

// grpcDoor makes the gRPC server. The error is of the TLS files.
func (s *server) grpcDoor(api *grpcapi.Server) (door, error) {
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(grpcapi.Codec()),
		// Envoy pings as often as it is configured to, with no call under way; the default of 5
		// minutes would answer with the end of the connection. There is no limit on streams, for
		// Envoy does not wait for one: calls over it would fail, and let requests pass.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		// Goroutines that are kept keep their stacks grown, which was a fifth of a call's cost. They
		// take calls only while they are free: enough of them for a burst.
		grpc.NumStreamWorkers(uint32(max(128, 4*runtime.GOMAXPROCS(0)))),
		grpc.WaitForHandlers(true),
	}
	if s.config.MaxConnectionAge > 0 {
		options = append(options, grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: s.config.MaxConnectionAge, MaxConnectionAgeGrace: s.config.MaxConnectionGrace, // 0: for ever
		}))
	}
	if s.config.TLS.Cert != "" {
		credentials, err := s.config.TLS.credentials(s.log)
		if err != nil {
			return door{}, err
		}
		options = append(options, grpc.Creds(credentials))
	}
	if s.tracing != nil {
		options = append(options, grpc.StatsHandler(s.tracing.Handler("/"+grpcapi.ServiceName+"/ShouldRateLimit")))
	}
	g := grpc.NewServer(options...)
	api.Register(g)
	h := newHealthServer()
	healthpb.RegisterHealthServer(g, h)
	reflection.Register(g)
	return door{
		ready:   func() { h.set(healthpb.HealthCheckResponse_SERVING) },
		unready: h.Shutdown,
		serve: func(l net.Listener) error {
			if err := g.Serve(l); !errors.Is(err, grpc.ErrServerStopped) { // stopped before it was started
				return err
			}
			return nil
		},
		stop: func(ctx context.Context) {
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
		},
	}, nil
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
