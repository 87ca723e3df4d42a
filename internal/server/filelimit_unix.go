//go:build unix

package server

import "syscall"

// fileLimit is how many files this process may have open; 0: unknown.
func fileLimit() uint64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return uint64(limit.Cur) //nolint:unconvert // it is signed on FreeBSD
}
