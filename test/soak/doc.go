// Package soak runs sidecars under mixed traffic while everything around them changes, and looks for what accumulates.
package soak
