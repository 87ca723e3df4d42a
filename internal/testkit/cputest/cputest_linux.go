// Package cputest measures processor time for tests. Unlike elapsed time, it does not depend on the load of
// the machine. On systems other than Linux, the package measures elapsed time.
package cputest

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Time returns the processor time that f takes on its goroutine.
func Time(f func()) time.Duration {
	runtime.LockOSThread() // the clock is that of a thread, so f must stay on one
	defer runtime.UnlockOSThread()
	start := ofThread()
	f()
	return ofThread() - start
}

func ofThread() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // the clock exists since Linux 2.6.12
	}
	return time.Duration(t.Nano())
}
