// Package limitsfile reads the limits of a sidecar's configuration files, for programs that decide requests
// themselves.
//
//	config, err := limitsfile.Load("", "limits.yaml")
//	if err != nil {
//		log.Fatal(err)
//	}
//	config.Store = memory.New(memory.Config{})
//	limiter, err := ratelimit.New(config)
//
// The limits under `limits` of a domain are loaded, with their shards, hash_tag and then. A program and
// sidecars that use the same Redis charge the same buckets.
//
// The tree of `descriptors` determines which limits apply to the requests of a proxy. It is checked but has
// no other effect, because a program names its limits directly. If a descriptor refers to a limit, the key of
// the limit has the values of those entries for which the file has a key but no value, in order. A limit that is
// written at a descriptor (rate_limit) is not loaded.
//
// Settings for the requests of proxies have no effect: on_backend_failure (calls return an error, and the
// program decides), max_delay, replaces, max_override and auth. Adjustments by operators have no effect
// either. Shadow mode and quota mode are errors, because the program would enforce a limit that sidecars do
// not enforce.
//
// The package is separate from ratelimit because it contains a YAML parser, which programs without such
// files do not need.
package limitsfile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

// Load reads configuration files and returns a Config with the domain and its limits. Each path is a file,
// a folder of *.yaml and *.yml files, or folder/** for all such files below it. The domain may be "" if the
// files have only one. The error lists all mistakes with their places.
func Load(domain string, paths ...string) (ratelimit.Config, error) {
	if len(paths) == 0 {
		return ratelimit.Config{}, errors.New("limitsfile: Load needs a path")
	}
	return configOf(domain)(config.Load(paths, config.Options{}))
}

// Parse is like Load, for the text of one file. Errors refer to the text by name.
func Parse(domain, name string, text []byte) (ratelimit.Config, error) {
	return configOf(domain)(config.Compile([]config.File{{Name: name, Data: text}}, config.Options{}))
}

func configOf(domain string) func(*limiter.Snapshot, config.Problems) (ratelimit.Config, error) {
	return func(s *limiter.Snapshot, problems config.Problems) (ratelimit.Config, error) {
		if problems.Bad() {
			return ratelimit.Config{}, fmt.Errorf("limitsfile: %w", mistakes(problems))
		}
		d, err := find(s, domain)
		if err != nil {
			return ratelimit.Config{}, fmt.Errorf("limitsfile: %w", err)
		}
		limits := make(ratelimit.Limits, len(d.Named))
		var refused []error
		for _, name := range slices.Sorted(maps.Keys(d.Named)) {
			p := d.Named[name]
			if p.Shadow || p.Quota {
				refused = append(refused, fmt.Errorf("limitsfile: %s: limit %q has shadow_mode or quota_mode, which package ratelimit does not support; remove it, or move the limit to another domain", p.Place, name))
			}
			limits[name] = ratelimit.Loaded(p)
		}
		if refused != nil {
			return ratelimit.Config{}, errors.Join(refused...)
		}
		return ratelimit.Config{Domain: d.Name, Limits: limits}, nil
	}
}

func mistakes(all config.Problems) (list config.Problems) {
	for _, p := range all {
		if !p.Warning {
			list = append(list, p)
		}
	}
	return list
}

// find returns the domain with this name. For an empty name it returns the only domain.
func find(s *limiter.Snapshot, name string) (*limiter.Domain, error) {
	known := slices.Sorted(maps.Keys(s.Domains))
	if name == "" && len(known) == 1 {
		name = known[0]
	}
	d := s.Domains[name]
	switch {
	case name == "" && len(known) > 1:
		return nil, fmt.Errorf("the files have the domains %s; pass one of them", strings.Join(known, ", "))
	case d == nil:
		return nil, fmt.Errorf("the files have no domain %q, but %s", name, strings.Join(known, ", "))
	case len(d.Named) == 0:
		return nil, fmt.Errorf("domain %q has no limit with a name; move the limits that the program uses to the key limits", name)
	}
	return d, nil
}
