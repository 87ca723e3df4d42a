//go:build !386 && !s390x

package nonblock

import "syscall"

const sysRecvfrom = syscall.SYS_RECVFROM
