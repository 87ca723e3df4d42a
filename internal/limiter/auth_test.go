package limiter_test

import (
	"net/netip"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/canonical"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

func TestTrustedAddresses(t *testing.T) {
	a := &limiter.Auth{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fe80::/10")}}
	for text, want := range map[string]bool{"10.1.2.3": true, "::ffff:10.1.2.3": true, "fe80::1%eth0": true, "11.1.2.3": false, "::ffff:11.1.2.3": false} {
		if got := a.Trusts(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: trusted %v, want %v", text, got, want)
		}
	}
}

func TestPathsOfRoutes(t *testing.T) {
	for path, want := range map[string][2]bool{ // as a prefix, and alone
		"/api/": {true, true}, "/api/x": {true, false}, "/api": {false, false}, "/": {false, false},
	} {
		for i, prefix := range []bool{true, false} {
			if got := (&limiter.Route{Path: "/api/", PathPrefix: prefix}).MatchesPath(path); got != want[i] {
				t.Errorf("%s: prefix %t matches %t, want %t", path, prefix, got, want[i])
			}
		}
	}
	slashes := &limiter.Route{Path: "/api/", PathPrefix: true, Ignore: canonical.IgnoreTrailingSlash}
	if !slashes.MatchesPath("/api") || slashes.MatchesPath("/apis") || !(&limiter.Route{}).MatchesPath("/any") {
		t.Error("a prefix matches its path without a trailing slash, if that is ignored, and no path matches any")
	}
}
