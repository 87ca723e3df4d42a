package load

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// grpcConnection sends requests with grpc-go. It has a goroutine for each request that may be outstanding.
type grpcConnection struct {
	run     *run
	request request
	conn    *grpc.ClientConn
}

func dialGRPC(r *run, req request) (*grpcConnection, error) {
	target := r.Target
	if !strings.HasPrefix(target, "unix:") {
		target = "passthrough:///" + target
	}
	conn, err := grpc.NewClient(target, grpc.WithNoProxy(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesCodec{})))
	if err != nil {
		return nil, err
	}
	return &grpcConnection{run: r, request: req, conn: conn}, nil
}

func (c *grpcConnection) close() { _ = c.conn.Close() }

func (c *grpcConnection) send(ctx context.Context, s *schedule) *recorder {
	next := s.next
	if s.open() {
		times := make(chan time.Duration) // not buffered, so that a late request keeps the time at which it was due
		go s.pace(ctx, times)
		next = func() (time.Duration, bool) { at, more := <-times; return at, more }
	}
	recorders := make([]*recorder, c.run.Outstanding)
	var workers sync.WaitGroup
	for i := range recorders {
		recorders[i] = newRecorder(c.run)
		workers.Go(func() { c.work(ctx, next, recorders[i]) })
	}
	workers.Wait()
	total := newRecorder(c.run)
	for _, r := range recorders {
		total.merge(r)
	}
	return total
}

func (c *grpcConnection) work(ctx context.Context, next func() (time.Duration, bool), to *recorder) {
	req, keys, response := c.request.clone(), newKeys(c.run), []byte(nil)
	for at, more := next(); more; at, more = next() {
		req.setKey(keys.next())
		if err := c.conn.Invoke(ctx, method, req.message, &response); err != nil {
			to.fail(status.Code(err).String())
			if ctx.Err() != nil {
				return
			}
			continue
		}
		to.answer(at, verdictOf(response))
	}
}

type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b := v.(*[]byte)
	*b = (*b)[:0]
	for _, part := range data {
		*b = append(*b, part.ReadOnlyData()...)
	}
	return nil
}
