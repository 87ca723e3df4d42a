package httpapi

import (
	"context"
	"sync"
)

// maxWorking is how many bodies are decoded and answered at once. What is decoded is several times larger than a
// body; those that wait are bodies only, at most one for each connection.
const maxWorking = 128

// slots bounds what is worked at. Its zero value is ready.
type slots struct {
	once sync.Once
	busy chan struct{}
}

// enter waits for a slot; false: ctx ended. leave must follow otherwise.
func (s *slots) enter(ctx context.Context) bool {
	s.once.Do(func() { s.busy = make(chan struct{}, maxWorking) })
	select {
	case s.busy <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *slots) leave() { <-s.busy }
