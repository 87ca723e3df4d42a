//go:build !unix

package server

// fileLimit is how many files this process may have open; 0: unknown.
func fileLimit() uint64 { return 0 }
