//go:build !unix

package server

import "time"

// processorTime returns the processor time that this process has used, or 0 if it is unknown.
func processorTime() time.Duration { return 0 }
