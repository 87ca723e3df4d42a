// Package soak runs sidecars under mixed traffic while everything around them changes, and checks that memory,
// goroutines and files do not accumulate.
package soak
