package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// configFlags are the flags that affect how a configuration is read: defaults of keys that its files may omit,
// --max-limits and --keep-blanks. serve and the commands that read a configuration have the same flags, so that
// the commands check what serve uses.
type configFlags struct {
	Consume          string  `enum:"auto,together,each" default:"auto" env:"RLSIDECAR_CONSUME" help:"How a denied request is charged, in domains without the key consume. together: it consumes nothing. each: the limits that allow it are charged, as in envoyproxy/ratelimit. auto: together for files, each for limits that a control plane sends."`
	OnBackendFailure string  `enum:"deny,allow,local,error" default:"deny" env:"RLSIDECAR_ON_BACKEND_FAILURE" help:"Answer when Redis does not decide in time, for limits without the key on_backend_failure: deny, allow, local (decide in memory with --local-share of the limit) or error (the proxy decides)."`
	LocalShare       float64 `default:"0" env:"RLSIDECAR_LOCAL_SHARE" help:"Share of a limit that this sidecar allows with on_backend_failure local, for limits without the key local_share: more than 0 and at most 1."`
	MaxLimits        int     `default:"100000" env:"RLSIDECAR_MAX_LIMITS" help:"Maximum number of limits in a configuration. A named limit counts once for each descriptor that uses it. A limit takes 1 to 2 KB of memory."`
	KeepBlanks       bool    `env:"RLSIDECAR_KEEP_BLANKS" help:"Keep blanks at the ends of descriptor values. By default they are removed, because a client could get a new bucket by adding a blank."`
}

// mostLimits is the maximum of --max-limits. The flag exists to bound memory, so its value must be bounded
// too.
const mostLimits = 10_000_000

// kong calls Validate.
func (f configFlags) Validate() error {
	if f.MaxLimits < 1 || f.MaxLimits > mostLimits {
		return fmt.Errorf("--max-limits must be between 1 and %d, but is %d", mostLimits, f.MaxLimits)
	}
	return nil
}

func (f configFlags) options() config.Options {
	failure, _ := limiter.ParseOnFailure(f.OnBackendFailure) // kong has already checked the value
	return config.Options{ConsumeEach: f.Consume == "each", OnFailure: failure, LocalShare: f.LocalShare, KeepBlanks: f.KeepBlanks, MaxLimits: f.MaxLimits}
}

func (f configFlags) load(a *app, paths []string) (*limiter.Snapshot, error) {
	if err := readable(paths); err != nil {
		return nil, err
	}
	snapshot, problems := config.Load(paths, f.options())
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
