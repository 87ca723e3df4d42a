package server

import (
	"crypto/tls"

	"google.golang.org/grpc"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
	"github.com/rlsidecar/rlsidecar/internal/h2grpc"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// fastServer returns the server of the fast engine. The server answers ShouldRateLimit itself, and passes calls of
// other methods to the server others.
func (s *server) fastServer(api *grpcapi.Server, others *grpc.Server, tls *tls.Config) *h2grpc.Server {
	return h2grpc.New(h2grpc.Config{
		Path: "/" + grpcapi.ServiceName + "/ShouldRateLimit", Method: fastMethod{api, s.limiter}, Others: others, TLS: tls,
		Inline:           s.stack.redis == nil, // the memory store decides before Submit returns
		SubmitTimeout:    s.config.Redis.Timeout,
		MaxConnectionAge: s.config.MaxConnectionAge, MaxConnectionGrace: s.config.MaxConnectionGrace, MaxConnectionIdle: s.config.MaxConnectionIdle,
	})
}

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
