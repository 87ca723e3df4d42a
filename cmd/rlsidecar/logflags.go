package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/offline/simulate"
)

type logFlags struct {
	LogFormat  string   `enum:"jsonl,nginx,envoy" default:"jsonl" help:"Format of the log: jsonl (a trace), nginx (combined, with $request_time or without) or envoy (default or JSON)."`
	Descriptor []string `sep:"none" placeholder:"KEY=%X,…" help:"Descriptor to make from each line of an access log. May be repeated."`
	Auth       bool     `help:"Instead of --descriptor: make descriptors by the routes of the section auth."`
	Domain     string   `help:"Domain of the requests. Required for an access log if several domains are configured."`
}

// configs returns how to replay a log with each of snapshots. It returns an error if the flags do not fit together.
func (c *logFlags) configs(maxKeys int, snapshots ...*limiter.Snapshot) (all []simulate.Config, err error) {
	templates, err := c.templates()
	if err != nil {
		return nil, err
	}
	domains := map[string]*limiter.Domain{}
	for _, s := range snapshots {
		if c.Auth && s.Auth == nil {
			return nil, errors.New("--auth needs a section auth in each configuration")
		}
		if c.Auth {
			templates = simulate.RouteTemplates(simulate.Format(c.LogFormat), s.Auth)
		}
		maps.Copy(domains, s.Domains)
		all = append(all, simulate.Config{Snapshot: s, Format: simulate.Format(c.LogFormat), Templates: templates, MaxKeys: maxKeys})
	}
	domain, err := c.domain(domains)
	for i := range all {
		all[i].Domain = domain
	}
	return all, err
}

// openLog opens a log and returns its name. "" and "-" are standard input. Reading a file shows the progress on a
// terminal.
func openLog(a *app, file string) (name string, log io.ReadCloser, err error) {
	if file == "" || file == "-" {
		return "standard input", io.NopCloser(a.stdin), nil
	}
	opened, err := os.Open(file)
	if err != nil {
		return file, nil, err
	}
	return file, withProgress(a, opened), nil
}

// templates parses the values of --descriptor. It returns an error if --log-format, --descriptor and --auth do not fit
// together.
func (c *logFlags) templates() (simulate.Templates, error) {
	isLog := simulate.Format(c.LogFormat) != simulate.JSONL
	switch {
	case c.Auth && !isLog:
		return simulate.Templates{}, errors.New("--auth needs --log-format nginx or envoy; a trace contains its descriptors")
	case c.Auth && len(c.Descriptor) > 0:
		return simulate.Templates{}, errors.New("--auth and --descriptor cannot be combined; give one of them")
	case c.Auth:
		return simulate.Templates{}, nil // the section auth determines the descriptors
	case isLog && len(c.Descriptor) == 0:
		return simulate.Templates{}, fmt.Errorf("--log-format %s needs --descriptor, such as --descriptor remote_address=%%h,path=%%U, or --auth", c.LogFormat)
	case !isLog && len(c.Descriptor) > 0:
		return simulate.Templates{}, errors.New("--descriptor needs --log-format nginx or envoy; a trace contains its descriptors")
	}
	return simulate.ParseTemplates(simulate.Format(c.LogFormat), c.Descriptor)
}

// domain returns --domain or, for an access log without it, the only configured domain. With --auth it returns "",
// because the routes state the domain.
func (c *logFlags) domain(domains map[string]*limiter.Domain) (string, error) {
	switch names := sortedKeys(domains); {
	case c.Domain != "" && domains[c.Domain] == nil:
		return "", fmt.Errorf("domain %q is not configured; the configuration has %v", c.Domain, names)
	case c.Auth && c.Domain != "":
		return "", errors.New("--auth and --domain cannot be combined; the routes of auth state the domain")
	case c.Auth || c.Domain != "" || simulate.Format(c.LogFormat) == simulate.JSONL:
		return c.Domain, nil
	case len(names) != 1:
		return "", fmt.Errorf("--log-format %s needs --domain, one of %v", c.LogFormat, names)
	default:
		return names[0], nil
	}
}
