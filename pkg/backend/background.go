package backend

import (
	"context"
	"sync"
	"time"
)

// Background runs what nobody waits for, bounded in number and time, until it is closed.
type Background struct {
	timeout time.Duration
	closing chan struct{}
	room    chan struct{}
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool // guarded by mu
}

// NewBackground makes one; timeout bounds each of what it runs.
func NewBackground(timeout time.Duration) *Background {
	return &Background{timeout: timeout, closing: make(chan struct{}), room: make(chan struct{}, 1024)}
}

// Do runs f, unless 1,024 are running or it is closed: then it is dropped, which leaves limits
// under, not over. It reports whether it does.
func (b *Background) Do(f func(ctx context.Context)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	select {
	case b.room <- struct{}{}:
	default:
		return false
	}
	b.running.Go(func() {
		defer func() { <-b.room }()
		ctx, cancel := context.WithTimeout(patiently(context.Background()), b.timeout)
		defer cancel()
		f(ctx)
	})
	return true
}

// Closing is closed when it is being closed.
func (b *Background) Closing() <-chan struct{} { return b.closing }

// Close waits for what runs.
func (b *Background) Close() {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		close(b.closing)
	}
	b.mu.Unlock()
	b.running.Wait()
}

type unwaited struct{}

// patiently marks ctx as that of something nobody waits for.
func patiently(ctx context.Context) context.Context { return context.WithValue(ctx, unwaited{}, true) }

// Unwaited tells whether ctx is that of something nobody waits for, as all that Background runs: it
// is better answered late than not, for then what became of it is not known.
func Unwaited(ctx context.Context) bool { return ctx.Value(unwaited{}) != nil }
