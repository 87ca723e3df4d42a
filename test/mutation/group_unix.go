//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// ownGroup puts cmd into a process group of its own. It returns a function that kills the group: go test, the
// test, and the servers that the test has started.
func ownGroup(cmd *exec.Cmd) (end func() error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
