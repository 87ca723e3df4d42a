package clientip

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func trusts(addr netip.Addr) bool { return netip.MustParsePrefix("10.0.0.0/8").Contains(addr) }

var peer = netip.MustParseAddr("10.0.0.1")

func TestForwarded(t *testing.T) {
	for _, c := range []struct {
		lines     []string
		want      string
		untrusted bool
	}{
		{nil, "10.0.0.1", false},
		{[]string{"192.0.2.7"}, "192.0.2.7", true},
		{[]string{"6.6.6.6, 192.0.2.7, 10.0.0.2"}, "192.0.2.7", true},   // the client forged the first hop
		{[]string{"6.6.6.6", "192.0.2.7, 10.0.0.2"}, "192.0.2.7", true}, // the client forged the first line
		{[]string{"192.0.2.7, nonsense, 10.0.0.2"}, "10.0.0.2", true},   // no proxy writes that
		{[]string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3", false},             // all hops are proxies
		{[]string{"[2001:db8::1]:443, ::ffff:10.0.0.2"}, "2001:db8::1", true},
		{[]string{" , 192.0.2.7:80 ,, "}, "192.0.2.7", true},
		{[]string{",10.0.0.2"}, "10.0.0.2", false},
	} {
		got, untrusted := Forwarded(c.lines, peer, trusts)
		if got.String() != c.want || untrusted != c.untrusted {
			t.Errorf("%q: %s %t, want %s %t", c.lines, got, untrusted, c.want, c.untrusted)
		}
	}
}

func TestHop(t *testing.T) {
	for text, want := range map[string]string{
		" 192.0.2.7\t": "192.0.2.7", "192.0.2.7:80": "192.0.2.7", "[2001:db8::1]": "2001:db8::1", "[fe80::1%eth0]:80": "fe80::1",
		"::ffff:192.0.2.7": "192.0.2.7", "": "invalid IP", "192.0.2.7 x": "invalid IP", "unknown": "invalid IP",
	} {
		if got, ok := Hop(text); got.String() != want || ok != got.IsValid() {
			t.Errorf("%q: got %s %t, want %s", text, got, ok, want)
		}
	}
}

// FuzzForwarded compares Forwarded with a reference implementation that splits all lines first.
func FuzzForwarded(f *testing.F) {
	f.Add("192.0.2.7, 10.0.0.2\n6.6.6.6")
	f.Add("[::1%eth0]:80,\t10.1.1.1")
	f.Add("10.0.0.9\nx\n,,")
	f.Fuzz(func(t *testing.T, text string) {
		lines := strings.Split(text, "\n")
		want := peer
		hops := strings.Split(strings.Join(lines, ","), ",")
		for _, hop := range slices.Backward(hops) {
			if hop = strings.Trim(hop, " \t"); hop == "" {
				continue
			}
			addr, is := Hop(hop)
			if !is {
				break
			}
			if want = addr; !trusts(addr) {
				break
			}
		}
		if got, _ := Forwarded(lines, peer, trusts); got != want {
			t.Errorf("%q: %s, want %s", lines, got, want)
		}
		if got, _ := Forwarded(lines, peer, trusts); got.Zone() != "" || got.Is4In6() {
			t.Errorf("%q: got %s; want no zone, and no IPv4 inside IPv6", lines, got)
		}
	})
}

func TestKeysOfClients(t *testing.T) {
	for _, c := range []struct {
		addr         string
		prefix       int
		key, network string // "" means none
	}{
		{"192.0.2.7", 64, "192.0.2.7", "192.0.2.7/32"},
		{"192.0.2.7", 16, "192.0.2.7", "192.0.2.7/32"},
		{"192.0.2.7", 128, "192.0.2.7", "192.0.2.7/32"},
		{"2001:db8:1:2:3:4:5:6", 64, "2001:db8:1:2::/64", "2001:db8:1:2::/64"},
		{"2001:db8::1", 127, "2001:db8::/127", "2001:db8::/127"},
		{"2001:db8::1", 128, "2001:db8::1", "2001:db8::1/128"},
		{"2001:db8::1", 129, "2001:db8::1", "2001:db8::1/128"},
		{"2001:db8::1", -1, "", ""},
		{"", 64, "", ""},
		{"", 0, "", ""},
	} {
		var addr netip.Addr
		if c.addr != "" {
			addr = netip.MustParseAddr(c.addr)
		}
		if got, ok := Key(addr, c.prefix); got != c.key || ok != (c.key != "") {
			t.Errorf("key of %s/%d: %q %t, want %q", c.addr, c.prefix, got, ok, c.key)
		}
		if got, ok := Network(addr, c.prefix); got != c.network || ok != (c.network != "") {
			t.Errorf("network of %s/%d: %q %t, want %q", c.addr, c.prefix, got, ok, c.network)
		}
	}
}
