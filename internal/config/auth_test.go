package config

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rlsidecar/rlsidecar/internal/canonical"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

func TestAuthSettingsAreCompiled(t *testing.T) {
	data, err := os.ReadFile("testdata/auth.good.yaml")
	must(t, err)
	s, problems := Compile([]File{{"auth.yaml", data}}, Options{})
	if len(problems) > 0 {
		t.Fatalf("got the problems %v; want none", problems)
	}
	from := func(key string, source limiter.AuthSource, name string) limiter.AuthEntry {
		return limiter.AuthEntry{Key: key, From: source, Name: name}
	}
	value := func(key, value string) limiter.AuthEntry { return limiter.AuthEntry{Key: key, Value: value} }
	want := &limiter.Auth{
		TrustUnix: true, IPv6Prefix: 56, Allow: true,
		Routes: []limiter.Route{
			{
				Place: "auth.yaml:20", Path: "/login", Ignore: canonical.IgnoreCase | canonical.IgnoreTrailingSlash | canonical.IgnoreParameters | canonical.IgnoreBackslash, Method: "POST", Host: "shop.test", Domain: "edge", Hits: 3,
				Headers: []limiter.HeaderMatch{{Name: "X-Kind", Value: "web", Prefix: true}, {Name: "X-Any", Prefix: true}},
				Descriptors: [][]limiter.AuthEntry{
					{from("remote_address", limiter.FromClientNetwork, "")},
					{from("path", limiter.FromPath, ""), from("user_id", limiter.FromHeader, "X-User")},
				},
			},
			{
				Place: "auth.yaml:27", Path: "/session", PathPrefix: true, Domain: "edge", Hits: 1, DryRun: true,
				Descriptors: [][]limiter.AuthEntry{
					{from("user_id", limiter.FromCookie, "sid")}, {from("user_id", limiter.FromQuery, "api_key")}, {from("user_id", limiter.FromJWT, "sub")},
				},
			},
			{
				Place: "auth.yaml:31", Domain: "edge", Hits: 1,
				Descriptors: [][]limiter.AuthEntry{
					{value("service", "shop"), from("who", limiter.FromHost, "Host")},
					{from("method", limiter.FromMethod, ""), from("host", limiter.FromHost, "")},
				},
			},
			{Place: "auth.yaml:40", Domain: "other", Hits: 1, Descriptors: [][]limiter.AuthEntry{{value("a", "1")}}},
		},
	}
	for _, p := range []string{"127.0.0.1/32", "::1/128", "10.0.0.0/8", "192.0.2.7/32", "192.0.2.0/24"} {
		want.Trusted = append(want.Trusted, netip.MustParsePrefix(p))
	}
	same := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if diff := cmp.Diff(want, s.Auth, same); diff != "" {
		t.Errorf("the settings differ (-want +got):\n%s", diff)
	}
	if s, _ := Compile([]File{{"a.yaml", []byte("domain: a")}}, Options{}); s.Auth != nil {
		t.Errorf("got %+v for a file without the section auth; want nil", s.Auth)
	}
	if s, problems := Compile([]File{{"a.yaml", []byte("domain: a\nauth: {}")}}, Options{}); s.Auth == nil || s.Auth.Allow || s.Auth.IPv6Prefix != 64 || len(s.Auth.Trusted) > 0 || s.Auth.TrustUnix {
		t.Errorf("an empty section auth: got %+v, %v; want Allow false, IPv6Prefix 64, and no trusted proxies", s.Auth, problems)
	}
}

func TestWarningsAboutTrustedProxies(t *testing.T) {
	const domain = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n"
	for network, want := range map[string]string{
		"::ffff:0.0.0.0/96": "0.0.0.0/0", "0.0.0.0/0": "0.0.0.0/0", "::/0": "::/0",
		"::ffff:10.0.0.0/104": "10.0.0.0/8", "::ffff:192.0.2.1": "192.0.2.1/32",
	} {
		s, problems := Compile(numbered([]string{domain + "auth: {trusted_proxies: ['" + network + "'], routes: [{descriptors: [[{key: k, from: client_ip}]]}]}\n"}), Options{})
		all := strings.HasSuffix(want, "/0")
		if s == nil || len(s.Auth.Trusted) != 1 || s.Auth.Trusted[0].String() != want || strings.Contains(problems.Error(), "trusts every client") != all {
			t.Errorf("%s: got %+v, %v; want %s, and a warning: %t", network, s, problems, want, all)
		}
	}
	for source, want := range map[string]bool{"client_ip": true, "client_network": true, "path": false} {
		_, problems := Compile(numbered([]string{domain + "auth: {routes: [{descriptors: [[{key: k, from: " + source + "}]]}]}\n"}), Options{})
		if got := strings.Contains(problems.Error(), "because no proxy is trusted"); got != want || problems.Bad() {
			t.Errorf("%s: warned: %t, want %t; the problems are %v", source, got, want, problems)
		}
	}
}
