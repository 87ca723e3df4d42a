//go:build !unix

package listen

// FileLimit returns the number of files that this process may open, or 0 if it is unknown.
func FileLimit() uint64 { return 0 }
