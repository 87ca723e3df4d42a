//go:build 386 || s390x

package nonblock

// Package syscall of these architectures uses socketcall, and has no number for recvfrom. Linux has one
// since version 4.3; Go 1.24 and later require Linux 3.2, on which Quiet reports false.
const sysRecvfrom = 371
