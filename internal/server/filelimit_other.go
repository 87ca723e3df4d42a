//go:build !unix

package server

// fileLimit returns the number of files that this process may open, or 0 if it is unknown.
func fileLimit() uint64 { return 0 }
