//go:build 386 || s390x

package nonblock

// On these architectures, package syscall uses socketcall and has no number for recvfrom. Linux has recvfrom there
// since version 4.3. Go 1.24 and later require only Linux 3.2. On versions before 4.3, Await returns
// without waiting.
const sysRecvfrom = 371
