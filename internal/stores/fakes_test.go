package stores_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

const ms = time.Millisecond

type storeFunc func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision)

func (f storeFunc) Submit(b *backend.Batch) {
	batchFunc(func(b *backend.Batch) {
		ctx, cancel := context.WithValue(context.Background(), detachedKey{}, b.Detached), context.CancelFunc(func() {})
		if !b.Deadline.IsZero() {
			ctx, cancel = context.WithDeadline(ctx, b.Deadline)
		}
		defer cancel()
		f(ctx, b.Charges, b.Decisions)
	}).Submit(b)
}

func detached(ctx context.Context) bool { return ctx.Value(detachedKey{}).(bool) }

type detachedKey struct{}

// batchFunc is a Store made from a function, which may block.
type batchFunc func(b *backend.Batch)

func (f batchFunc) Submit(b *backend.Batch) {
	decide := func() {
		f(b)
		b.Finish()
	}
	if b.Waits {
		decide()
	} else {
		go decide()
	}
}

type recorder struct {
	next backend.Store

	mu         sync.Mutex
	batches    [][]backend.Charge
	answeredAt []algorithms.Micros // when each batch was answered, by the clock of the wrapped Store
}

func (r *recorder) Submit(b *backend.Batch) {
	copied := make([]backend.Charge, len(b.Charges))
	for i, c := range b.Charges {
		if b.Decisions[i] != (backend.Decision{}) {
			panic("the decisions of a submitted batch are not zero")
		}
		c.Key = append([]byte(nil), c.Key...)
		copied[i] = c
	}
	r.mu.Lock()
	n := len(r.batches)
	r.batches, r.answeredAt = append(r.batches, copied), append(r.answeredAt, 0)
	r.mu.Unlock()
	inner := *b
	inner.Done = func(*backend.Batch) {
		r.mu.Lock()
		r.answeredAt[n] = b.Decisions[0].At
		r.mu.Unlock()
		b.Done(b)
	}
	r.next.Submit(&inner)
}

func (r *recorder) all() [][]backend.Charge {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.batches)
}

func (r *recorder) at(n int) algorithms.Micros {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answeredAt[n]
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.batches)
}

func (r *recorder) last(t *testing.T) []backend.Charge {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.batches) == 0 {
		t.Fatal("no batch was submitted")
	}
	return r.batches[len(r.batches)-1]
}

// observed is a Store that calls see with each batch, and submits it to next.
type observed struct {
	next backend.Store
	see  func(*backend.Batch)
}

func (s observed) Submit(b *backend.Batch) {
	s.see(b)
	s.next.Submit(b)
}

// echo allows everything and returns the cost as Remaining, so that each answer identifies its charge.
var echo = storeFunc(func(_ context.Context, charges []backend.Charge, decisions []backend.Decision) {
	for i := range charges {
		decisions[i] = backend.Decision{Decision: algorithms.Decision{Allowed: true, Remaining: charges[i].Terms.Cost}}
	}
})

func after(d time.Duration, next backend.Store) storeFunc {
	return storeFunc(func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
		select {
		case <-time.After(d):
			backend.Take(ctx, next, charges, decisions)
		case <-ctx.Done():
			fail(decisions)
		}
	})
}

var errDown = errors.New("down")

func fail(decisions []backend.Decision) {
	for i := range decisions {
		decisions[i] = backend.Decision{Err: errors.Join(backend.ErrUnavailable, errDown)}
	}
}

func failsWhile(down *atomic.Bool, next backend.Store) storeFunc {
	return func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
		if down.Load() {
			fail(decisions)
			return
		}
		backend.Take(ctx, next, charges, decisions)
	}
}

func costs(grouped bool, of ...int64) []backend.Charge {
	charges := make([]backend.Charge, len(of))
	for i, cost := range of {
		charges[i] = backend.Charge{Key: []byte{byte('a' + i)}, Terms: algorithms.Charge{Cost: cost}}
		if !grouped {
			charges[i].Group = i
		}
	}
	return charges
}

func take(ctx context.Context, s backend.Store, charges ...backend.Charge) []backend.Decision {
	decisions := make([]backend.Decision, len(charges))
	backend.Take(ctx, s, charges, decisions)
	return decisions
}

func wall() algorithms.Micros { return algorithms.Micros(time.Now().UnixMicro()) }

var compile = limittest.Compile
