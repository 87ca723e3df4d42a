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
	// maxFile bounds the number of bytes in a file with secrets.
	maxFile = 4096
	// reread is how long the content of a file is used before the file is read again.
	reread = time.Second
)

type file[T any] struct {
	read    func() (T, error)
	equal   func(a, b T) bool
	failed  func(err error) // logs the error of a later read, unless the read before had the same error
	changed func(value T)   // logs that there is a new value
}

type followed[T any] struct {
	file[T]
	value atomic.Pointer[T]

	mu      sync.Mutex // held by the request that reads the file; other requests use value without waiting
	at      time.Time  // when the file was last read; guarded by mu
	problem string     // the error of the last read, or ""; guarded by mu
}

// follow returns a function that returns the current value of f. The function reads the file again, at most
// once a second. If the file cannot be read, the previous value stays in use. follow returns an error if the
// first read fails.
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

// update reads the file. The caller holds w.mu.
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

// readFile returns the content of a file, which must have at most maxFile bytes. Its errors do not contain
// the content.
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
