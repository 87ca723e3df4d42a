//go:build unix

package listen

import "syscall"

// FileLimit returns the number of files that this process may open, or 0 if it is unknown.
func FileLimit() uint64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return uint64(limit.Cur) //nolint:unconvert // it is signed on FreeBSD
}
