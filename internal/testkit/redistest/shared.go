package redistest

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
)

// Shared is the testing.TB of servers that several tests of a binary use. A server that is started with it runs until
// End, which TestMain calls after the tests.
type Shared struct {
	testing.TB // nil: the servers call only the methods below

	mu       sync.Mutex
	cleanups []func() // guarded by mu
}

// End stops the servers.
func (s *Shared) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
	s.cleanups = nil
}

// Helper does nothing.
func (s *Shared) Helper() {}

// Cleanup registers a function that End calls.
func (s *Shared) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

// TempDir returns a folder that End removes.
func (s *Shared) TempDir() string {
	dir, err := os.MkdirTemp("", "rl") // no test owns the folder
	if err != nil {
		panic(err)
	}
	s.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Fatal ends the test binary, because the servers belong to no single test.
func (s *Shared) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// Fatalf ends the test binary, because the servers belong to no single test.
func (s *Shared) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
