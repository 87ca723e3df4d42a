package storetest

import (
	"context"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Started is s, but starts what it takes where s can, and waits for that.
func Started(s backend.Taker) backend.Taker { return started{s} }

type started struct{ backend.Taker }

// Take implements backend.Taker.
func (s started) Take(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
	landed := make(chan struct{})
	if backend.Start(s.Taker, charges, decisions, func() { close(landed) }) {
		<-landed
		return
	}
	s.Taker.Take(ctx, charges, decisions)
}

// Reset implements backend.Resetter where the Store does.
func (s started) Reset(ctx context.Context, c backend.Charge) error {
	return backend.Reset(ctx, s.Taker, c)
}
