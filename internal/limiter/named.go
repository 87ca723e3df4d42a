package limiter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/spelling"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// RequestError is a mistake in a request for a named limit.
type RequestError struct {
	// Missing means that the domain or limit does not exist.
	Missing bool
	Problem string
}

func (e *RequestError) Error() string { return e.Problem }

func missing(format string, args ...any) *RequestError {
	return &RequestError{Missing: true, Problem: fmt.Sprintf(format, args...)}
}

// Limit returns a named limit. domain may be empty if only one domain has the name. The error is a
// *RequestError.
func (s *Snapshot) Limit(domain, name string) (*Domain, *Policy, error) {
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
			return nil, nil, &RequestError{Problem: fmt.Sprintf("several domains have a limit named %q; add the domain", descriptors.Printable(name))}
		}
		in = d
	}
	if in == nil {
		return nil, nil, missing("no limit is named %q", descriptors.Printable(name))
	}
	return in, in.Named[name], nil
}

// inspected returns a limit for an operator: the named limit or, if there is none, the limit of a descriptor with this
// name. The error is a *RequestError.
func (s *Snapshot) inspected(domain, name string) (*Domain, *Policy, error) {
	d, p, err := s.Limit(domain, name)
	unknown, ok := errors.AsType[*RequestError](err)
	if !ok || !unknown.Missing || domain != "" && s.Domains[domain] == nil {
		return d, p, err
	}
	for _, use := range s.withName(domain, name) {
		switch {
		case use.Unlimited:
		case p != nil && p.Domain != use.Domain:
			return nil, nil, &RequestError{Problem: fmt.Sprintf("several domains have a limit named %q; add the domain", descriptors.Printable(name))}
		case use.Whole:
			return nil, nil, &RequestError{Problem: fmt.Sprintf("limit %q: all keys and values of a descriptor identify its bucket; give --domain and --descriptor key=value[,key=value]…", descriptors.Printable(name))}
		default:
			p = use
		}
	}
	if p == nil {
		unknown.Problem += spelling.DidYouMean(name, s.namesIn(domain))
		return nil, nil, unknown
	}
	return s.Domains[p.Domain], p, nil
}

// namesIn returns the names of the limits of a domain, or of all domains if it is "".
func (s *Snapshot) namesIn(domain string) (names []string) {
	for _, p := range s.Policies {
		if domain == "" || p.Domain == domain {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// InlineDomain returns the domain of a limit that comes with a request. domain may be empty if only one domain is
// configured. name is the name of the limit. The error is a *RequestError.
func (s *Snapshot) InlineDomain(domain, name string) (*Domain, error) {
	if domain == "" && len(s.Domains) == 1 {
		for only := range s.Domains {
			domain = only
		}
	}
	switch d := s.Domains[domain]; {
	case domain == "":
		return nil, &RequestError{Problem: "there are several domains; add the domain"}
	case d == nil:
		return nil, missing("domain %q is not configured", descriptors.Printable(domain))
	case d.Named[name] != nil:
		return nil, &RequestError{Problem: fmt.Sprintf("limit %q is in the configuration, and a request cannot replace it; leave out config, or choose another name", name)}
	default:
		return d, nil
	}
}

// reachable returns a *RequestError if no proxy charges the bucket of key. That is so if descriptors use the
// named limit p, but none of them has as many open entries as key has values. For a use that is Whole, key has the key
// and the value of each entry. If no descriptor uses p, applications choose the keys, and every key is reachable.
func (s *Snapshot) reachable(p *Policy, key []string) error {
	var uses []string
	for _, use := range s.Policies {
		if use.Owner != p.Owner || use == p && p.Extra().Named {
			continue
		}
		if use.Whole && len(key) > 0 && len(key)%2 == 0 || !use.Whole && len(use.Open) == len(key) {
			return nil
		}
		if text := openKeys(use); !slices.Contains(uses, text) {
			uses = append(uses, text)
		}
	}
	if len(uses) == 0 {
		return nil
	}
	more := ""
	if len(uses) > maxListedUses {
		uses, more = uses[:maxListedUses], " or others"
	}
	return &RequestError{Problem: fmt.Sprintf("limit %q: the key has %s; a bucket of this limit is identified by %s%s",
		descriptors.Printable(p.Name), values(len(key)), strings.Join(uses, " or by "), more)}
}

const maxListedUses = 8

func openKeys(p *Policy) string {
	names := make([]string, len(p.Extra().OpenKeys))
	for i, key := range p.Extra().OpenKeys {
		names[i] = descriptors.Printable(key)
	}
	if len(names) == 0 {
		return values(0)
	}
	return values(len(names)) + " (" + strings.Join(names, ", ") + ")"
}

func values(n int) string {
	switch n {
	case 0:
		return "no value"
	case 1:
		return "1 value"
	default:
		return fmt.Sprintf("%d values", n)
	}
}

func (s *Snapshot) limit(domain string, charge *NamedCharge) (*Domain, *Policy, error) {
	if charge.Inline == nil {
		return s.Limit(domain, charge.Name)
	}
	d := s.Domains[charge.Inline.Domain]
	if d == nil { // a reload has removed the domain since the limit was compiled
		return nil, nil, missing("domain %q is not configured", descriptors.Printable(charge.Inline.Domain))
	}
	return d, charge.Inline, nil
}

// Reset deletes the buckets of c, so that they equal new ones, and lists them in c.Results. The error is a
// *RequestError, ErrNoConfig, or wraps backend.ErrUnavailable. In the last case some of the buckets may have been
// deleted.
func (l *Limiter) Reset(ctx context.Context, c *Call) error {
	u := l.current.Load()
	if u == nil {
		return ErrNoConfig
	}
	c.config, c.Inspect, c.adjusted = &l.config, true, u.adjusted
	if err := c.plan(u.snapshot, nil); err != nil {
		return err
	}
	if c.Verdict.Domain == nil {
		return missing("domain %q is not configured", descriptors.Printable(c.Request.Domain))
	}
	for i := range c.Results {
		r := &c.Results[i]
		if r.charge < 0 {
			continue
		}
		if err := l.reset(ctx, r.Policy.Name, c.charges[r.charge]); err != nil {
			return err
		}
	}
	return nil
}

func (l *Limiter) reset(ctx context.Context, name string, charge backend.Charge) error {
	if local := l.config.Local; local != nil { // resetting a local bucket cannot fail, so it comes before the bucket in the store, which may be unreachable
		if err := backend.ResetBucket(ctx, local, charge); err != nil {
			return fmt.Errorf("reset the local bucket of limit %q: %w", name, err)
		}
	}
	if err := l.markReset(ctx, &charge); err != nil {
		return fmt.Errorf("reset a bucket of limit %q: %w", name, err)
	}
	if err := backend.ResetBucket(ctx, l.store, charge); err != nil {
		return fmt.Errorf("reset a bucket of limit %q: %w", name, err)
	}
	return nil
}
