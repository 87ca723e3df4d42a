package config

import (
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
)

func TestHashTagKeepsARequestsBucketsInOneSlot(t *testing.T) {
	const file = `
domain: edge
hash_tag: entry:tenant
limits:
  send: {algorithm: token_bucket, rate: 10, period: 1m}
descriptors:
  - key: tenant
    rate_limit: {unit: second, requests_per_unit: 100}
    descriptors:
      - key: user
        limit: send
  - key: tenant
    value: gold
    rate_limit: {unit: second, requests_per_unit: 1000}
  - key: path
    rate_limit: {unit: second, requests_per_unit: 5}
`
	s := good(t, Options{}, file)
	slot := func(text string) uint64 {
		entries, err := descriptors.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return s.Domains["edge"].Tree.Match(entries).Policies[0].SlotOf(entries)
	}
	a, b := slot("tenant=a"), slot("tenant=b")
	if a == 0 || a == b || slot("tenant=a,user=x") != a || slot("tenant=a,user=y") != a {
		t.Errorf("slots of tenant=a %d, tenant=b %d, tenant=a,user=x %d, tenant=a,user=y %d; want one slot above 0 for tenant a, and another for b",
			a, b, slot("tenant=a,user=x"), slot("tenant=a,user=y"))
	}
	if got := s.Domains["edge"].Named["send"].SlotOfKey([]string{"a", "x"}); got != a {
		t.Errorf("SlotOfKey of the named limit returned %d, want %d", got, a)
	}
	const other = "domain: shop\nhash_tag: domain\nlimits: {byName: {rate: 1, period: 1m, algorithm: token_bucket}, used: {rate: 1, period: 1m, algorithm: token_bucket}}\n" +
		"descriptors: [{key: user, limit: used}]\n"
	for name, p := range good(t, Options{}, other).Domains["shop"].Named {
		if p.SlotOfKey([]string{"x"}) != descriptors.SlotNumber("shop") {
			t.Errorf("limit %s: slot %d, want %d, that of the domain", name, p.SlotOfKey([]string{"x"}), descriptors.SlotNumber("shop"))
		}
	}
	for tag, want := range map[string]uint64{"domain": descriptors.SlotNumber("shop"), "entry:user": 0} {
		d := good(t, Options{}, strings.Replace(other, "hash_tag: domain", "hash_tag: "+tag, 1)).Domains["shop"]
		p, err := Inline(d, "own", []byte(`{"algorithm":"token_bucket","rate":1,"period":"1m"}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := p.SlotOfKey([]string{"x"}); got != want {
			t.Errorf("hash_tag %s: a limit that comes with a request has the slot %d, want %d", tag, got, want)
		}
	}
	if slot("tenant=gold") != descriptors.SlotNumber("gold") || slot("path=/") != 0 {
		t.Errorf("slots of tenant=gold %d, path=/ %d; want %d, that of the text gold, and 0", slot("tenant=gold"), slot("path=/"), descriptors.SlotNumber("gold"))
	}
}
