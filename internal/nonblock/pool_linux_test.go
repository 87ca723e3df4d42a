package nonblock

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestAWorkerPoolRunsAllTasks(t *testing.T) {
	var c Pool
	defer c.Close()
	var ran atomic.Int64
	for _, at := range []int{1, 2, 10, 1, 5} { // number of functions that run at the same time
		for range 200 {
			var wg sync.WaitGroup
			before := ran.Load()
			for range at {
				wg.Add(1)
				c.Go(func() { ran.Add(1); wg.Done() })
			}
			wg.Wait()
			if n := ran.Load() - before; n != int64(at) {
				t.Fatalf("%d of %d functions ran", n, at)
			}
		}
	}
}

func TestAWorkerPoolIsKeptAndBounded(t *testing.T) {
	var c Pool
	block := make(chan struct{})
	for range 3 * maxIdle {
		c.Go(func() { <-block })
	}
	idle := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.idle)
	}
	close(block)
	eventually(t, func() bool { return idle() == maxIdle })
	files := openFiles(t)
	for range 100 {
		done := make(chan struct{})
		c.Go(func() { close(done) })
		<-done
		eventually(t, func() bool { return idle() == maxIdle })
	}
	if n := openFiles(t); n > files {
		t.Errorf("%d more files are open after 100 functions; want none", n-files)
	}
	c.Close()
	eventually(t, func() bool { return openFiles(t) <= files-maxIdle })
	done := make(chan struct{})
	c.Go(func() { close(done) })
	<-done
	time.Sleep(10 * time.Millisecond)
	if idle() != 0 {
		t.Error("a worker was kept after Close; want none")
	}
}

// unusable is the name of the file that workers open in place of an eventfd; nil means an eventfd. It is atomic,
// because a pool that outlives its test reads it too.
var unusable atomic.Pointer[string]

func init() {
	usual := openEvent
	openEvent = func() (int, error) {
		if file := unusable.Load(); file != nil {
			return unix.Open(*file, unix.O_CREAT|unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
		}
		return usual()
	}
}

// The poller rejects the file of a worker, as it does when a process watches too many files. Each function must
// still run, and no file may stay open.
func TestAWorkerThatCannotWaitLosesNoJob(t *testing.T) {
	refused := filepath.Join(t.TempDir(), "file") // epoll rejects regular files, and a write-only file cannot be read
	unusable.Store(&refused)
	t.Cleanup(func() { unusable.Store(nil) })
	var c Pool
	files := openFiles(t)
	for i := range 1000 {
		ran := make(chan struct{})
		c.Go(func() { close(ran) })
		select {
		case <-ran:
		case <-time.After(time.Minute):
			t.Fatalf("job %d has not run", i)
		}
	}
	c.Close()
	eventually(t, func() bool { return openFiles(t) <= files })
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the condition is still false after a minute")
		}
	}
}
