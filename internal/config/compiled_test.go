package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// described describes what a configuration compiles to: lines for each domain, each limit, and auth. The
// files testdata/*.good.limits.txt have it for the files of valid configurations.
func described(s *limiter.Snapshot) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.Domains)) {
		d := s.Domains[name]
		fmt.Fprintf(&b, "domain %s: %s, on_backend_failure %s %g, slot %+v, require %v, deny_body %s, headers %+v, bounded %t, settle %+v\n",
			name, limiter.ConsumeWord(d.Alone), d.OnFailure, d.LocalShare, d.Slot, d.Require, d.DenyBody, d.Headers, d.Bounded, d.Settle)
	}
	owners := map[string]int{} // the numbers of the sets of buckets, by Owner
	for _, p := range s.Policies {
		if _, known := owners[p.Owner]; !known {
			owners[p.Owner] = len(owners)
		}
		more := p.Extra()
		fmt.Fprintf(&b, "%s %s, policy %d with buckets %d, counted as %s %v %v", p.Place, p.Name, p.Index, owners[p.Owner], p.StatKey, more.StatLevels, more.StatValues)
		for _, flag := range []struct {
			is   bool
			name string
		}{{more.Named, "named"}, {p.Reference, "reference"}, {p.Detailed, "detailed"}, {p.Whole, "whole"}, {p.Limit.TakesDenied, "takes denied"}} {
			if flag.is {
				b.WriteString(", " + flag.name)
			}
		}
		fmt.Fprintf(&b, ", open %v, called %q\n\t%s\n", p.Open, p.RateName, p.Words())
		for _, f := range p.Facts() {
			if !f.Default && f.Name != "a bucket for each" && f.Name != "settle" {
				fmt.Fprintf(&b, "\t%s: %s\n", f.Name, f.Text)
			}
		}
		if more.Local != nil {
			fmt.Fprintf(&b, "\tlocal: %d per %d us, up to %d\n", more.Local.Rate, more.Local.Period(), more.Local.Capacity)
		}
		if e := more.Settle; e != nil {
			fmt.Fprintf(&b, "\tsettle: estimate %d, %d to %d, trust_declared %t, unknown_cost %d, ttl %d us, max_debt %d, by bucket %t, learn %+v\n",
				e.Estimate, e.Least, e.Most, e.TrustDeclared, e.Unknown, e.TTL, p.Limit.MaxDebt, e.ByBucket, e.Learn)
		}
	}
	if a := s.Auth; a != nil {
		fmt.Fprintf(&b, "auth: allow %t, trusted %v, on Unix sockets %t, IPv6 /%d\n", a.Allow, a.Trusted, a.TrustUnix, a.IPv6Prefix)
		for _, route := range a.Routes {
			fmt.Fprintf(&b, "\t%+v\n", route)
		}
	}
	return b.String()
}

// Options that state the defaults have the effect of the same settings in a file.
func TestOptionsAreTheDefaultsOfTheFiles(t *testing.T) {
	data, _, _ := strings.Cut(string(fixtures(t, "modes.good.yaml")[0].Data), "---")
	without := strings.Replace(data, "consume: each\non_backend_failure: local\nlocal_share: 50%\n", "\n\n\n", 1)
	o := Options{OnFailure: limiter.Local, LocalShare: 0.5, ConsumeEach: true}
	if got, want := described(good(t, o, without)), described(good(t, Options{}, data)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if reported := bad(t, Options{OnFailure: limiter.Local}, without); !strings.HasPrefix(reported, "a.yaml:14:9: on_backend_failure local needs a local_share") {
		t.Errorf("got the problems\n%s\nwant that a local_share is missing", reported)
	}
}
