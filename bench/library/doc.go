// Package library compares package ratelimit with other Go libraries. It is a module of its own, so that their
// dependencies are not those of the program.
package library
