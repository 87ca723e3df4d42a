package limiter

import (
	"slices"

	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Requirement is a list of keys. A request satisfies it if an entry in any of its descriptors has one of these
// keys, and a value that is not empty.
type Requirement []string

// String returns the keys in words: "user or team".
func (r Requirement) String() string { return descriptors.PrintableList(r, " or ") }

// Requires reports whether requests to a domain must have certain entries. If so, a request without descriptors
// is denied.
func (s *Snapshot) Requires(domain string) bool {
	d := s.Domains[domain]
	return d != nil && len(d.Require) > 0
}

// missing returns the first Requirement of d that the request does not satisfy, or nil if it satisfies all of
// them. Blanks at the ends of values have been removed before, unless Snapshot.KeepBlanks is set. A settle-done
// request need not satisfy any, because its work is over.
func (c *Call) missing(d *Domain) Requirement {
	if c.IsDone() {
		return nil
	}
	for _, r := range d.Require {
		if !c.satisfies(r) {
			return r
		}
	}
	return nil
}

func (c *Call) satisfies(r Requirement) bool {
	for i := range c.Descriptors {
		for _, e := range c.Descriptors[i].Entries {
			if e.Value != "" && slices.Contains(r, e.Key) {
				return true
			}
		}
	}
	return false
}

func (c *Call) denyMissing() {
	c.Denied, c.Never = true, true
	for i := range c.Statuses {
		c.Statuses[i].Denied = true
	}
}
