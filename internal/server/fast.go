package server

import (
	"runtime/debug"

	"google.golang.org/grpc"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
	"github.com/rlsidecar/rlsidecar/internal/h2grpc"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// fastServer returns the server of the fast engine. The server answers ShouldRateLimit itself, and passes calls of
// other methods to the server others.
func (s *server) fastServer(api *grpcapi.Server, others *grpc.Server) *h2grpc.Server {
	c := h2grpc.Config{
		Path: "/" + grpcapi.ServiceName + "/ShouldRateLimit", Method: fastMethod{api, s.limiter}, Others: others,
		Inline:           s.stack.redis == nil, // the memory store decides before Submit returns
		SubmitTimeout:    s.config.Redis.Timeout,
		BufferedBytes:    bufferedBytes(debug.SetMemoryLimit(-1)),
		MaxConnectionAge: s.config.MaxConnectionAge, MaxConnectionGrace: s.config.MaxConnectionGrace, MaxConnectionIdle: s.config.MaxConnectionIdle,
	}
	if s.handshakes != nil {
		c.Handshake = s.handshakes.server
	}
	return h2grpc.New(c)
}

// bufferedBytes returns h2grpc.Config.BufferedBytes: an eighth of the memory limit in bytes (math.MaxInt64 if there is
// none), from 4 to 32 MiB. A request can have 4 MiB.
func bufferedBytes(memory int64) int { return int(min(max(memory/8, 4<<20), 32<<20)) }

// fastMethod implements h2grpc.Method with ShouldRateLimit.
type fastMethod struct {
	*grpcapi.Server
	limiter *limiter.Limiter
}

func (m fastMethod) NewBatch() h2grpc.Batch { return fastBatch{m.Server.NewBatch(m.limiter)} }

type fastBatch struct{ *grpcapi.Batch }

func (b fastBatch) Append(to []byte, i int) ([]byte, *h2grpc.Status) {
	to, err := b.Batch.Append(to, i)
	if err == nil {
		return to, nil
	}
	s := grpcstatus.Convert(err)
	return to, &h2grpc.Status{Code: uint32(s.Code()), Message: s.Message()}
}
