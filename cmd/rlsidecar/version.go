package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/alecthomas/kong"
)

func printVersion(w io.Writer) error {
	version, revision := build()
	_, err := fmt.Fprintf(w, "rlsidecar %s\ncommit %s\n%s %s/%s\n",
		version, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// versionFlag is the flag --version, which new users try first.
type versionFlag bool

func (versionFlag) BeforeReset(k *kong.Kong) error {
	err := printVersion(k.Stdout)
	k.Exit(exitDone)
	return err
}

// The linker sets linkedVersion and linkedRevision (-X main.linkedVersion=…) if the program is built
// without the Git history, as for the container image.
var linkedVersion, linkedRevision string

// build returns the version and the commit that Go or the linker recorded.
func build() (version, revision string) {
	if linkedVersion != "" {
		return linkedVersion, cmp.Or(linkedRevision, "(unknown)")
	}
	version, revision = "(unknown)", "(unknown)"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version, revision
	}
	if info.Main.Version != "" {
		version = info.Main.Version
	}
	modified := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = " (modified)"
		}
	}
	return version, revision + modified
}
