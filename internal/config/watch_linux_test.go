package config

import (
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestAFileThatCouldNotBeReadIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name := filepath.Join(t.TempDir(), "a.yaml")
		write(t, name, "domain: a")
		noticed, load := watched(t, name)
		time.Sleep(10 * poll) // the file is not new any more
		var files syscall.Rlimit
		must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files))
		must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Max: files.Max}))
		load()
		must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files))
		noticed("there was no file descriptor", 1)
	})
}
