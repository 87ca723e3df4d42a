package limiter

import (
	"fmt"

	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// AskError is what is wrong with asking for a limit by its name.
type AskError struct {
	// Missing: there is no such domain or limit.
	Missing bool
	Problem string
}

// Error is the Problem.
func (e *AskError) Error() string { return e.Problem }

func missing(format string, args ...any) *AskError {
	return &AskError{Missing: true, Problem: fmt.Sprintf(format, args...)}
}

// Limit finds a named limit; domain may be empty where one domain alone has the name. The error is
// an *AskError.
func (s *Snapshot) Limit(domain, name string) (*Domain, *descriptors.Policy, error) {
	if domain != "" {
		d := s.Domains[domain]
		if d == nil {
			return nil, nil, missing("domain %q is not configured", descriptors.Printable(domain))
		}
		p := d.Named[name]
		if p == nil {
			return nil, nil, missing("domain %q has no limit named %q", d.Name, descriptors.Printable(name))
		}
		return d, p, nil
	}
	var in *Domain
	for _, d := range s.Domains {
		if d.Named[name] == nil {
			continue
		}
		if in != nil {
			return nil, nil, &AskError{Problem: fmt.Sprintf("several domains have a limit named %q; say which domain", descriptors.Printable(name))}
		}
		in = d
	}
	if in == nil {
		return nil, nil, missing("no limit is named %q", descriptors.Printable(name))
	}
	return in, in.Named[name], nil
}
