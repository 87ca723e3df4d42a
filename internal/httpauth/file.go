package httpauth

import (
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxFile bounds the content of a file with secrets.
	maxFile = 4096
	// reread is how long the content of the file is cached.
	reread = time.Second
)

// file is a file with secrets, with the functions that use it.
type file[T any] struct {
	read    func() (T, error)
	equal   func(a, b T) bool
	failed  func(err error) // reports a problem with a later read, once and not every second
	changed func(value T)   // reports a new value
}

// followed is the value of a file that is read again.
type followed[T any] struct {
	file[T]
	value atomic.Pointer[T]

	mu      sync.Mutex // held by the request that reads the file; other requests use value
	at      time.Time  // the time of the last read; guarded by mu
	problem string     // the last problem with the file; guarded by mu
}

// follow returns a function that returns the value of f, which is read again at most once a second. If it
// cannot be read, the previous value stays in use. follow returns an error if the first read fails.
func follow[T any](f file[T]) (func() T, error) {
	value, err := f.read()
	if err != nil {
		return nil, err
	}
	w := &followed[T]{file: f, at: time.Now()}
	w.value.Store(&value)
	return w.get, nil
}

func (w *followed[T]) get() T {
	if w.mu.TryLock() {
		if now := time.Now(); now.Sub(w.at) >= reread {
			w.at = now
			w.update()
		}
		w.mu.Unlock()
	}
	return *w.value.Load()
}

// update reads the file. w.mu is held.
func (w *followed[T]) update() {
	value, err := w.read()
	if err != nil {
		if w.problem != err.Error() {
			w.failed(err)
		}
		w.problem = err.Error()
		return
	}
	w.problem = ""
	if !w.equal(value, *w.value.Load()) {
		w.changed(value)
		w.value.Store(&value)
	}
}

// readFile returns the content of a file, which must have at most maxFile bytes. Its errors contain none of it.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return data, err
}
