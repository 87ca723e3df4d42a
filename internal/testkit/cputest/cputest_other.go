//go:build !linux

package cputest

import "time"

// Time returns the elapsed time that f takes.
func Time(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}
