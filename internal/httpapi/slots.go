package httpapi

import (
	"context"
	"sync"
)

// maxWorking is the largest number of bodies that are decoded and answered at the same time. A decoded body needs
// several times the memory of the body. A waiting request holds only its body, and each connection has at most
// one waiting request.
const maxWorking = 128

// slots bounds the number of requests in progress. Its zero value is ready for use.
type slots struct {
	once sync.Once
	busy chan struct{}
}

// enter waits for a slot. It returns false if ctx ended before. Otherwise the caller must call leave.
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
