package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

func (s configSettings) load(a *app, paths []string) (*limiter.Snapshot, error) {
	if err := readable(paths); err != nil {
		return nil, err
	}
	snapshot, problems := config.Load(paths, s.options())
	for _, p := range problems {
		fmt.Fprintln(a.stderr, p)
	}
	if snapshot == nil {
		return nil, exitError{code: exitNo}
	}
	return snapshot, nil
}

// readable returns an error if a path cannot be found. The exit code is exitFailed and not exitNo, because that is
// not a mistake in the configuration.
func readable(paths []string) error {
	var missing []error
	for _, path := range paths {
		if _, err := os.Stat(config.Root(path)); err != nil {
			missing = append(missing, err)
		}
	}
	if len(missing) > 0 {
		return exitError{exitFailed, errors.Join(missing...)}
	}
	return nil
}
