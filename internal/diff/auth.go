package diff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/canonical"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

func auth(was, is *limiter.Auth) []Change {
	c := Change{Kind: Changed, What: "section", Name: "auth"}
	switch {
	case was == nil && is == nil:
		return nil
	case was == nil:
		c.Kind = Added
		for i := range is.Routes {
			c.Details = append(c.Details, "route added: "+route(&is.Routes[i]))
		}
		return []Change{c}
	case is == nil:
		c.Kind, c.Details = Removed, []string{"/v1/auth denies every request"}
		return []Change{c}
	}
	c.Details = differences(
		part{"default", allowed(was.Allow), allowed(is.Allow)},
		part{"trusted_proxies", fmt.Sprint(was.Trusted, " unix: ", was.TrustUnix), fmt.Sprint(is.Trusted, " unix: ", is.TrustUnix)},
		part{"ipv6_prefix", fmt.Sprint(was.IPv6Prefix), fmt.Sprint(is.IPv6Prefix)},
	)
	old, new := routes(was), routes(is)
	for _, r := range old {
		if !slices.Contains(new, r) {
			c.Details = append(c.Details, "route removed: "+r)
		}
	}
	for _, r := range new {
		if !slices.Contains(old, r) {
			c.Details = append(c.Details, "route added: "+r)
		}
	}
	if !slices.Equal(common(old, new), common(new, old)) {
		c.Details = append(c.Details, "the order of routes changed: the first that matches is used")
	}
	if len(c.Details) == 0 {
		return nil
	}
	return []Change{c}
}

func allowed(allow bool) string {
	if allow {
		return "allow"
	}
	return "deny"
}

func routes(a *limiter.Auth) (all []string) {
	for i := range a.Routes {
		all = append(all, route(&a.Routes[i]))
	}
	return all
}

func route(r *limiter.Route) string {
	method, path := r.Method, r.Path
	if method == "" {
		method = "any method"
	}
	if path == "" { // any path
		path = "/*"
	} else if r.PathPrefix {
		path += "*"
	}
	text := method + " " + descriptors.Printable(r.Host+path)
	for _, h := range r.Headers {
		value := descriptors.Printable(h.Value)
		if h.Prefix {
			value += "*"
		}
		text += fmt.Sprintf(" with %s: %s", h.Name, value)
	}
	if r.Ignore != 0 {
		text += " (path_ignores: " + ignored(r.Ignore) + ")"
	}
	var shown []string
	for _, entries := range r.Descriptors {
		var parts []string
		for i := range entries {
			source := entries[i].Source()
			if entries[i].From == limiter.FromValue {
				source = `"` + descriptors.Printable(entries[i].Value) + `"`
			}
			parts = append(parts, descriptors.Printable(entries[i].Key)+"="+source)
		}
		shown = append(shown, strings.Join(parts, ","))
	}
	text += fmt.Sprintf(" -> domain %s: %s", descriptors.Printable(r.Domain), strings.Join(shown, "; "))
	if r.Hits != 1 {
		text += fmt.Sprintf(", %d hits", r.Hits)
	}
	if r.DryRun {
		text += ", nothing is consumed"
	}
	return text
}

func ignored(set canonical.Ignore) string {
	var words []string
	for _, one := range []struct {
		ignore canonical.Ignore
		word   string
	}{
		{canonical.IgnoreCase, "case"}, {canonical.IgnoreTrailingSlash, "trailing_slash"},
		{canonical.IgnoreParameters, "parameters"}, {canonical.IgnoreBackslash, "backslash"},
	} {
		if set&one.ignore != 0 {
			words = append(words, one.word)
		}
	}
	return strings.Join(words, ", ")
}
