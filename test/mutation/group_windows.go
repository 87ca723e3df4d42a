package main

import "os/exec"

// ownGroup returns a function that kills only cmd, because Windows has no process groups.
func ownGroup(cmd *exec.Cmd) (end func() error) {
	return func() error { return cmd.Process.Kill() }
}
