// Package soak runs sidecars with mixed traffic for a long time, while configuration, Redis, passwords and
// certificates change. Memory, goroutines and open files must not grow.
package soak
