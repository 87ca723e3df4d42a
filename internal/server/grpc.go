package server

import (
	"context"
	"runtime/debug"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/rlsidecar/rlsidecar/internal/accesslog"
	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
	"github.com/rlsidecar/rlsidecar/internal/h2grpc"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/listen"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// grpcListener returns the gRPC listener. Package h2grpc answers ShouldRateLimit. It passes calls of other methods to a
// server of the gRPC library.
func (s *server) grpcListener(api *grpcapi.Server) (listener, error) {
	c := h2grpc.Config{
		Path: "/" + grpcapi.ServiceName + "/ShouldRateLimit", Method: grpcMethod{api}, Caller: api.Caller,
		Inline:           s.stack.redis == nil, // the memory store decides before Submit returns
		SubmitTimeout:    s.config.Redis.Timeout,
		BufferedBytes:    bufferedBytes(debug.SetMemoryLimit(-1)),
		MaxConnectionAge: s.config.MaxConnectionAge, MaxConnectionGrace: s.config.MaxConnectionGrace, MaxConnectionIdle: s.config.MaxConnectionIdle,
	}
	if s.config.TLS.Cert != "" {
		config, err := s.config.TLS.Config(s.log)
		if err != nil {
			return listener{}, err
		}
		s.handshakes = listen.NewHandshakes(config)
		c.Handshake = s.handshakes.Server
	}
	h := newHealthServer()
	others := grpc.NewServer(grpc.WaitForHandlers(true), grpc.MaxRecvMsgSize(maxOtherMessage))
	grpcapi.Register(others)
	healthpb.RegisterHealthServer(others, h)
	if s.config.AccessLogService {
		accesslog.NewService(func(id string) algorithms.Micros { return s.limiter.RenewSlots(id, limiter.ReporterAccessLog) }).Register(others)
	}
	reflection.Register(others)
	c.Others = others
	f := h2grpc.New(c)
	return listener{
		ready: func() { h.set(healthpb.HealthCheckResponse_SERVING) }, unready: h.Shutdown, serve: f.Serve,
		stop: func(ctx context.Context) {
			h.end()
			f.Stop(ctx)
			others.Stop()
		},
	}, nil
}

// maxOtherMessage bounds the messages of the other services, in bytes. Those of the access log service are the longest.
const maxOtherMessage = 1 << 20

// bufferedBytes returns h2grpc.Config.BufferedBytes: an eighth of the memory limit in bytes (math.MaxInt64 if there is
// none), from 4 to 32 MiB. A request can have 4 MiB.
func bufferedBytes(memory int64) int { return int(min(max(memory/8, 4<<20), 32<<20)) }

// grpcMethod implements h2grpc.Method with ShouldRateLimit.
type grpcMethod struct{ *grpcapi.Server }

func (m grpcMethod) NewBatch() h2grpc.Batch { return grpcBatch{m.Server.NewBatch()} }

type grpcBatch struct{ *grpcapi.Batch }

func (b grpcBatch) Finish(to []byte, i int) ([]byte, h2grpc.Answer) {
	to, err := b.Answer(to, i)
	answer := h2grpc.Answer{Slots: b.Slots(i), Delay: b.Delay(i)}
	if err != nil {
		s := status.Convert(err)
		answer.Status = &h2grpc.Status{Code: uint32(s.Code()), Message: s.Message()}
	}
	return to, answer
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
