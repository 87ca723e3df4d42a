//go:build 386 || s390x

package nonblock

// On these architectures, package syscall uses socketcall and has no number for recvfrom. Linux has
// recvfrom since version 4.3. On older versions Quiet reports false; Go 1.24 and later require Linux 3.2.
const sysRecvfrom = 371
