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
	exact, prefix := limiter.Route{Path: "/api/"}, limiter.Route{Path: "/api/", PathPrefix: true}
	folded := limiter.Route{Path: "/api/", PathPrefix: true, Ignore: canonical.IgnoreTrailingSlash}
	for _, test := range []struct {
		route *limiter.Route
		path  string
		want  bool
	}{
		{&limiter.Route{}, "/x", true},
		{&exact, "/api/", true},
		{&exact, "/api", false},
		{&exact, "/api/x", false},
		{&prefix, "/api/x", true},
		{&prefix, "/api", false},
		{&folded, "/api", true},
		{&folded, "/apix", false},
	} {
		if got := test.route.MatchesPath(test.path); got != test.want {
			t.Errorf("%+v: %s matches %v, want %v", test.route, test.path, got, test.want)
		}
	}
}

func TestSourcesOfValues(t *testing.T) {
	for want, e := range map[string]limiter.AuthEntry{
		"client_ip": {From: limiter.FromClientIP}, "header:x": {From: limiter.FromHeader, Name: "x"}, "jwt:sub": {From: limiter.FromJWT, Name: "sub"},
	} {
		if got := e.Source(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
