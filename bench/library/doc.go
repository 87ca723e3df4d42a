// Package library compares package ratelimit with other Go libraries. It is a separate module, so that the
// program does not depend on them.
package library
