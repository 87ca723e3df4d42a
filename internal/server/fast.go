package server

import (
	"crypto/tls"
	"fmt"

	"google.golang.org/grpc"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
	"github.com/rlsidecar/rlsidecar/internal/h2grpc"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// redisFlights is how many questions of one connection are on their way to Redis at most. Two keep it
// busy; more let a connection overtake a question that one slow server delays.
const redisFlights = 3

// errLate is what limits are answered with whose request cannot wait for Redis any longer.
var errLate = fmt.Errorf("%w: no answer in time", backend.ErrUnavailable)

// fastServer makes the door that answers ShouldRateLimit itself, and has others do the rest.
func (s *server) fastServer(api *grpcapi.Server, others *grpc.Server, tls *tls.Config) *h2grpc.Server {
	c := h2grpc.Config{
		Path: "/" + grpcapi.ServiceName + "/ShouldRateLimit", Method: fastMethod{api, s.limiter, backend.Blocking(s.stack.top)}, Others: others, TLS: tls,
		MaxConnectionAge: s.config.MaxConnectionAge, MaxConnectionGrace: s.config.MaxConnectionGrace, MaxConnectionIdle: s.config.MaxConnectionIdle,
	}
	if s.stack.redis != nil { // memory answers at once
		c.Flights, c.Timeout, c.Margin, c.Late = redisFlights, s.config.Redis.Timeout, answerMargin, errLate
	}
	return h2grpc.New(c)
}

// fastMethod is ShouldRateLimit as package h2grpc knows methods.
type fastMethod struct {
	*grpcapi.Server
	limiter *limiter.Limiter
	store   backend.Taker
}

// Ready tells whether some questions can be answered without asking Redis.
func (m fastMethod) Ready() bool {
	early, ok := m.store.(backend.Early)
	return ok && early.Ready()
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
