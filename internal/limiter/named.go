package limiter

import (
	"cmp"
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

// ambiguous is the error for the name of a limit that several domains have.
func ambiguous(name string) error {
	return &RequestError{Problem: fmt.Sprintf("several domains have a limit named %q; add the domain", descriptors.Printable(name))}
}

// unknownLimit is the error for a limit that a domain does not have. If domain is "", no domain has the limit.
func unknownLimit(domain, name string) *RequestError {
	if domain == "" {
		return missing("no limit is named %q", descriptors.Printable(name))
	}
	return missing("domain %q has no limit named %q", domain, descriptors.Printable(name))
}

func unknownDomain(name string) error {
	return missing("domain %q is not configured", descriptors.Printable(name))
}

// Limit returns a named limit. domain may be empty if only one domain has the name. The error is a
// *RequestError.
func (s *Snapshot) Limit(domain, name string) (in *Domain, p *Policy, err error) {
	if domain != "" {
		if in = s.Domains[domain]; in == nil {
			return nil, nil, unknownDomain(domain)
		}
	} else {
		for _, d := range s.Domains {
			if d.Named[name] != nil && in != nil {
				return nil, nil, ambiguous(name)
			}
			if d.Named[name] != nil {
				in = d
			}
		}
	}
	if in == nil || in.Named[name] == nil {
		return nil, nil, unknownLimit(domain, name)
	}
	return in, in.Named[name], nil
}

// uses returns all policies of a limit. They have one name, and share their numbers. domain may be empty if only one
// domain has the limit. The error is a *RequestError. It ends with a similar name, or else with otherwise.
func (s *Snapshot) uses(domain, name, otherwise string) ([]*Policy, error) {
	if domain != "" && s.Domains[domain] == nil {
		return nil, unknownDomain(domain)
	}
	var policies []*Policy
	for in := range s.Domains {
		if domain == "" || in == domain {
			policies = append(policies, s.Find(in, name)...)
		}
	}
	if len(policies) == 0 {
		unknown := unknownLimit(domain, name)
		unknown.Problem += cmp.Or(spelling.DidYouMean(name, s.namesIn(domain)), otherwise)
		return nil, unknown
	}
	if slices.ContainsFunc(policies, func(p *Policy) bool { return p.Domain != policies[0].Domain }) {
		return nil, ambiguous(name)
	}
	return policies, nil
}

// inspected returns a limit for an operator: the named limit or, if there is none, the limit of a descriptor with this
// name. The error is a *RequestError.
func (s *Snapshot) inspected(domain string, of *NamedCharge) (*Domain, *Policy, error) {
	d, p, err := s.Limit(domain, of.Name)
	if unknown, ok := errors.AsType[*RequestError](err); !ok || !unknown.Missing {
		return d, p, err
	}
	policies, err := s.uses(domain, of.Name, "")
	if err != nil {
		return nil, nil, err
	}
	at := slices.IndexFunc(policies, func(p *Policy) bool { return !p.Unlimited })
	switch {
	case at < 0:
		return nil, nil, &RequestError{Problem: fmt.Sprintf("limit %q is unlimited: it has no buckets", descriptors.Printable(of.Name))}
	case policies[at].Whole && (len(of.Key) == 0 || len(of.Key)%2 > 0):
		return nil, nil, &RequestError{Problem: fmt.Sprintf("limit %q: all keys and values of a descriptor identify its bucket; give --domain and --descriptor key=value[,key=value]…", descriptors.Printable(of.Name))}
	}
	return s.Domains[policies[at].Domain], policies[at], nil
}

// Inspection returns a dry run for an operator: of a request with this cost to the bucket of a limit or, if entries is not
// nil, to all limits that a descriptor matches.
func Inspection(domain, limit string, key []string, entries []descriptors.Entry, cost int64) *Call {
	c := &Call{Request: Request{Domain: domain, Inspect: true}}
	if entries != nil {
		c.Descriptors = []Descriptor{{Entries: slices.Clone(entries), Cost: cost}}
	} else {
		c.Limits = []NamedCharge{{Name: limit, Key: key, Count: cost}}
	}
	return c
}

// namesIn returns the names of the limits of a domain, or of all domains if it is "".
func (s *Snapshot) namesIn(domain string) (names []string) {
	for _, p := range s.Limits() {
		if domain == "" || p.Domain == domain {
			names = append(names, p.Name)
		}
	}
	return names
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
		return nil, unknownDomain(domain)
	case d.Named[name] != nil:
		return nil, &RequestError{Problem: fmt.Sprintf("limit %q is in the configuration, and a request cannot replace it; leave out config, or choose another name", name)}
	default:
		return d, nil
	}
}

// checkKey returns a *RequestError if no request of a proxy charges the bucket of key. That is so if descriptors use the
// limit, whose policies are given, but none of them has as many open entries as key has values. For a use that is Whole,
// key has the key and the value of each entry. If no descriptor uses the limit, applications choose the keys, and any is
// right.
func checkKey(policies []*Policy, name string, key []string) error {
	var uses []string
	for _, use := range policies {
		switch {
		case use.Extra().Named: // the named limit itself
			continue
		case use.Whole && len(key) > 0 && len(key)%2 == 0, !use.Whole && len(use.Open) == len(key):
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
		descriptors.Printable(name), values(len(key)), strings.Join(uses, " or by "), more)}
}

const maxListedUses = 8

func openKeys(p *Policy) string {
	if p.Whole {
		return "key,value,key,value… of the whole descriptor"
	}
	names := p.Extra().OpenKeys
	if len(names) == 0 {
		return values(0)
	}
	return values(len(names)) + " (" + descriptors.PrintableList(names, ", ") + ")"
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
		return nil, nil, unknownDomain(charge.Inline.Domain)
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
	if err := backend.ResetBucket(ctx, l.config.store, charge); err != nil {
		return fmt.Errorf("reset a bucket of limit %q: %w", name, err)
	}
	return nil
}

// weightedCost returns the cost in units of the numbers in costs, by the weights of p. The error is a *RequestError.
func weightedCost(p *Policy, costs map[string]int64) (int64, error) {
	w := p.Extra().Weights
	if w == nil {
		return 0, &RequestError{Problem: fmt.Sprintf("limit %q has no weights, so it cannot take costs; send count, or add weights to the limit", descriptors.Printable(p.Name))}
	}
	cost, err := w.Cost(costs)
	if err != nil {
		return 0, &RequestError{Problem: fmt.Sprintf("limit %q: costs: %v", descriptors.Printable(p.Name), err)}
	}
	return cost, nil
}
