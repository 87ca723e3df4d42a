package main

import (
	"errors"
	"fmt"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/offline/simulate"
)

// logFlags say how a trace or an access log is read.
type logFlags struct {
	Format     string   `enum:"jsonl,nginx,envoy" default:"jsonl" help:"Of the log: jsonl (a trace), nginx (combined) or envoy (default or JSON)."`
	Descriptor []string `sep:"none" placeholder:"KEY=%X,…" help:"What becomes of a line of an access log; may be repeated."`
	Auth       bool     `help:"Ask about a line of an access log what the routes of the section auth ask, instead of --descriptor."`
	Domain     string   `help:"The domain to ask; needed for an access log where several are configured."`
}

// templates reads --descriptor, which goes with access logs only.
func (c *logFlags) templates() (simulate.Templates, error) {
	isLog := simulate.Format(c.Format) != simulate.JSONL
	switch {
	case c.Auth && !isLog:
		return simulate.Templates{}, errors.New("--auth goes with --format nginx or envoy; a trace names its descriptors itself")
	case c.Auth && len(c.Descriptor) > 0:
		return simulate.Templates{}, errors.New("--auth and --descriptor both say what is asked; give one")
	case c.Auth:
		return simulate.Templates{}, nil // the configuration has them
	case isLog && len(c.Descriptor) == 0:
		return simulate.Templates{}, fmt.Errorf("--format %s needs --descriptor, such as --descriptor remote_address=%%h,path=%%U, or --auth", c.Format)
	case !isLog && len(c.Descriptor) > 0:
		return simulate.Templates{}, errors.New("--descriptor goes with --format nginx or envoy; a trace names its descriptors itself")
	}
	return simulate.ParseTemplates(simulate.Format(c.Format), c.Descriptor)
}

// domain is the one to ask: an access log names none.
func (c *logFlags) domain(domains map[string]*limiter.Domain) (string, error) {
	switch names := sortedKeys(domains); {
	case c.Domain != "" && domains[c.Domain] == nil:
		return "", fmt.Errorf("domain %q is not configured; there is %v", c.Domain, names)
	case c.Auth && c.Domain != "":
		return "", errors.New("--auth goes without --domain, which the routes say")
	case c.Auth || c.Domain != "" || simulate.Format(c.Format) == simulate.JSONL:
		return c.Domain, nil
	case len(names) != 1:
		return "", fmt.Errorf("--format %s needs --domain, one of %v", c.Format, names)
	default:
		return names[0], nil
	}
}
