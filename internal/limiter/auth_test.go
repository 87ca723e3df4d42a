package limiter_test

import (
	"net/netip"
	"testing"

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
